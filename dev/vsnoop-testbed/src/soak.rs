//! How much of what takes long: little in `make test`, much in `make soak`, which sets
//! `VSNOOP_SOAK=1`.

/// Whether this is `make soak`.
pub fn is_soak() -> bool {
    std::env::var_os("VSNOOP_SOAK").is_some_and(|value| value == "1")
}

/// Returns `few` in `make test`, `many` in `make soak`.
pub fn soaked<T>(few: T, many: T) -> T {
    if is_soak() { many } else { few }
}
