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

    /// Payload of a segment in bytes: the low bits of `how` choose its kind.
    pub fn payload_len(&mut self, how: u8) -> u32 {
        match how & 3 {
            0 => 0,
            1 => self.byte().into(),
            2 => self.half().into(),
            _ => 1_448,
        }
    }
}
