//! The algorithms of a handshake.

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};

/// Algorithms, the preferred ones first.
pub fn crypto_provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        let (aes, chacha) =
            (cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_CHACHA20_POLY1305_SHA256);
        Arc::new(CryptoProvider {
            cipher_suites: if cpu_has_aes() { vec![aes, chacha] } else { vec![chacha, aes] },
            kx_groups: vec![kx_group::X25519MLKEM768, kx_group::X25519],
            ..default_provider()
        })
    });
    Arc::clone(&PROVIDER)
}

/// Whether AES-GCM is the faster cipher on this CPU.
pub fn cpu_has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}
