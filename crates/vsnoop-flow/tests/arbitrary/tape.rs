//! Bytes as a program.

pub struct Tape<'a>(pub &'a [u8]);

impl Tape<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}
