//! Sealed records of one size that leave with one system call.

use crate::io::udp::{MAX_SEGMENTS, MAX_SEND_BYTES, Mark};

/// Records of `segment_bytes` each, the last perhaps shorter.
pub struct RecordBatch {
    buffer: Box<[u8]>,
    /// Sum of the records.
    bytes: usize,
    segment_bytes: usize,
    count: usize,
    /// The mark of all of them.
    mark: Mark,
    /// Most bytes of a batch.
    limit_bytes: usize,
}

/// Records that leave together.
#[derive(Clone, Copy)]
pub struct Records<'a> {
    pub bytes: &'a [u8],
    pub segment_bytes: usize,
    pub mark: Mark,
}

impl RecordBatch {
    pub fn new() -> Self {
        Self {
            buffer: vec![0; MAX_SEND_BYTES].into_boxed_slice(),
            bytes: 0,
            segment_bytes: 0,
            count: 0,
            mark: Mark::default(),
            limit_bytes: MAX_SEND_BYTES,
        }
    }

    /// Bounds the bytes of a batch.
    pub fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes.min(MAX_SEND_BYTES);
    }

    /// Whether a record can be added. None can behind a shorter one.
    pub fn admits(&self, record_bytes: usize, mark: Mark) -> bool {
        let last_is_shorter = self.bytes != self.count * self.segment_bytes;
        self.count == 0
            || (!last_is_shorter
                && self.mark == mark
                && record_bytes <= self.segment_bytes
                && self.count < MAX_SEGMENTS
                && self.bytes + record_bytes <= self.limit_bytes)
    }

    /// The room for the next record.
    pub fn record_space(&mut self, record_bytes: usize) -> &mut [u8] {
        &mut self.buffer[self.bytes..self.bytes + record_bytes]
    }

    /// Adds the record that was written to the first `record_bytes` of
    /// [`record_space`](Self::record_space).
    pub fn add(&mut self, record_bytes: usize, mark: Mark) {
        if self.count == 0 {
            self.segment_bytes = record_bytes;
            self.mark = mark;
        }
        self.bytes += record_bytes;
        self.count += 1;
    }

    /// The records; `None` without any.
    pub fn records(&self) -> Option<Records<'_>> {
        let Self { segment_bytes, mark, .. } = *self;
        (self.count > 0).then(|| Records { bytes: &self.buffer[..self.bytes], segment_bytes, mark })
    }

    pub fn clear(&mut self) {
        (self.bytes, self.count) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_records_of_one_size_and_mark_and_a_shorter_one_ends_it() {
        let mut batch = RecordBatch::new();
        let mark = Mark::default();
        assert!(batch.records().is_none() && batch.admits(MAX_SEND_BYTES, mark));
        batch.add(100, mark);
        assert!(batch.admits(100, mark) && batch.admits(40, mark));
        assert!(!batch.admits(101, mark), "it is longer than the first");
        assert!(!batch.admits(100, Mark { label: 1, ..mark }));
        batch.add(40, mark);
        assert!(!batch.admits(40, mark), "the last is shorter");
        let records = batch.records().expect("there are two");
        assert_eq!((records.bytes.len(), records.segment_bytes), (140, 100));
        batch.clear();
        batch.set_limit(250);
        batch.add(100, mark);
        batch.add(100, mark);
        assert!(!batch.admits(100, mark), "the limit is 250 bytes");
    }
}
