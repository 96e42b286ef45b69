mod error;
mod system;
fn main() {}
