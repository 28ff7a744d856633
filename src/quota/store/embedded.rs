//! stub
use super::*;
#[derive(Clone)]
pub struct Embedded;
pub enum Clock {
    System,
    Manual(std::sync::Arc<std::sync::atomic::AtomicU64>),
}
impl Embedded {
    pub fn new(_c: Clock) -> Result<Self, StoreError> {
        Ok(Self)
    }
    pub fn run(&self, _s: &Script, _k: &[&str], _a: &[&str]) -> Result<Reply, StoreError> {
        Ok(Reply::Nil)
    }
    pub fn command(&self, _w: &[&[u8]]) -> Result<Reply, StoreError> {
        Ok(Reply::Nil)
    }
}
impl StoreError {
    pub fn from_text(t: &str) -> Self {
        Self::Odd(t.into())
    }
}
