pub fn ensure_running() {}
pub fn restart_if_needed() {}
pub fn running_pid() -> Option<i32> {
    None
}
