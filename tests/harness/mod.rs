//! tmp
#![allow(dead_code, reason = "x")]
#![allow(unreachable_pub, reason = "x")]
pub mod redis_server;
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
pub fn all_tools_required() -> bool {
    std::env::var_os("VOXGATE_TEST_ALL").is_some()
}
