//! Finding bytes in a chain while the hooks change it.

use std::cell::{Cell, RefCell};

use vsnoop_flow::seq;
use vsnoop_flow::types::HOLD_CHUNK;
use vsnoop_hold::{Chain, Chunks, Slice};

use crate::case::at;

/// A chain of these chunks, and the changes that another CPU makes between the reader's steps.
#[derive(Default)]
struct TestChunks {
    base: Cell<u32>,
    chunks: RefCell<Vec<u32>>,
    /// Steps until the first chunk is freed; then the next, and so on.
    moves: RefCell<Vec<u32>>,
    walked: Cell<u32>,
}

impl TestChunks {
    fn new(base: u32, chunks: &[u32]) -> Self {
        let memory = TestChunks { base: Cell::new(base), ..TestChunks::default() };
        memory.chunks.borrow_mut().extend(chunks);
        memory
    }

    /// The VM has acknowledged the first chunk.
    fn give_back(&self) {
        self.base.set(self.base.get() + HOLD_CHUNK);
        self.chunks.borrow_mut().remove(0);
    }

    fn step(&self) {
        let mut moves = self.moves.borrow_mut();
        if let Some(first) = moves.first_mut() {
            *first -= 1;
            if *first == 0 {
                moves.remove(0);
                drop(moves);
                self.give_back();
            }
        }
    }
}

impl Chunks for TestChunks {
    fn front(&mut self) -> (seq, u32) {
        let front =
            (at(self.base.get()), self.chunks.borrow().first().copied().unwrap_or(u32::MAX));
        self.step();
        front
    }

    fn next(&mut self, chunk: u32) -> u32 {
        let chunks = self.chunks.borrow();
        let place = chunks.iter().position(|&other| other == chunk);
        let next = place.and_then(|place| chunks.get(place + 1)).copied();
        drop(chunks);
        self.walked.set(self.walked.get() + 1);
        self.step();
        // A chunk that was freed belongs to another flow.
        next.unwrap_or(999)
    }
}

fn slice(chunk: u32, offset: u32, len: u32) -> Slice {
    Slice { chunk, offset, len }
}

const C: u32 = HOLD_CHUNK;

#[test]
fn bytes_are_found_across_chunks_and_the_wrap_of_sequence_numbers() {
    let mut memory = TestChunks::new(0, &[7, 3, 9]);
    let mut chain = Chain::default();
    assert_eq!(chain.find(&mut memory, at(0), 10), Some(vec![slice(7, 0, 10)]));
    assert_eq!(chain.find(&mut memory, at(C - 1), 1), Some(vec![slice(7, C - 1, 1)]));
    assert_eq!(chain.find(&mut memory, at(C), 1), Some(vec![slice(3, 0, 1)]));
    let all = vec![slice(7, 100, C - 100), slice(3, 0, C), slice(9, 0, 50)];
    assert_eq!(chain.find(&mut memory, at(100), 2 * C - 50), Some(all));
}

#[test]
fn a_chain_is_walked_once() {
    let mut memory = TestChunks::new(0, &[7, 3, 9, 4]);
    let mut chain = Chain::default();
    chain.find(&mut memory, at(0), 4 * C);
    assert_eq!(memory.walked.get(), 3);
    chain.find(&mut memory, at(C), 3 * C);
    memory.give_back();
    chain.find(&mut memory, at(C), 3 * C);
    assert_eq!(memory.walked.get(), 3);
    memory.chunks.borrow_mut().push(11);
    assert_eq!(chain.find(&mut memory, at(4 * C), 1), Some(vec![slice(11, 0, 1)]));
    assert_eq!(memory.walked.get(), 4);
}

#[test]
fn what_was_given_back_is_not_found() {
    let mut memory = TestChunks::new(C, &[3, 9]);
    let mut chain = Chain::default();
    assert_eq!(chain.find(&mut memory, at(C - 1), 10), None);
    assert_eq!(chain.find(&mut memory, at(C), 10), Some(vec![slice(3, 0, 10)]));
    memory.give_back();
    assert_eq!(chain.find(&mut memory, at(C), 10), None);
}

#[test]
fn a_chain_that_moves_while_it_is_walked_is_read_right_or_not_at_all() {
    for first in 1..12 {
        for second in 1..8 {
            let mut memory = TestChunks::new(0, &[7, 3, 9, 4, 6]);
            *memory.moves.borrow_mut() = vec![first, second];
            let mut chain = Chain::default();
            let whole: Vec<_> = [9, 4, 6].map(|chunk| slice(chunk, 0, C)).into();
            let found = chain.find(&mut memory, at(2 * C), 3 * C);
            assert_eq!(found, Some(whole), "{first} {second}");
            // A byte is found as long as its chunk is in the chain.
            let mut memory = TestChunks::new(0, &[7, 3, 9]);
            *memory.moves.borrow_mut() = vec![first];
            let whole: Vec<_> = [7, 3, 9].map(|chunk| slice(chunk, 0, C)).into();
            let found = Chain::default().find(&mut memory, at(0), 3 * C);
            assert!(found.is_none() || found == Some(whole), "{first}: {found:?}");
        }
    }
}

#[test]
fn a_chain_that_goes_as_fast_as_it_is_read_is_not_read() {
    let mut memory = TestChunks::new(0, &Vec::from_iter(0..200));
    *memory.moves.borrow_mut() = vec![1; 190];
    let found = Chain::default().find(&mut memory, at(199 * C), 10);
    assert!(found.is_none() || found == Some(vec![slice(199, 0, 10)]), "{found:?}");
}

#[test]
fn what_was_read_from_chunks_that_had_gone_is_not_remembered() {
    for first in 1..12 {
        let mut memory = TestChunks::new(0, &[7, 3, 9, 4]);
        *memory.moves.borrow_mut() = vec![first, 1, 1];
        let mut chain = Chain::default();
        chain.find(&mut memory, at(0), 4 * C);
        memory.moves.borrow_mut().clear();
        assert_eq!(chain.find(&mut memory, at(3 * C), 10), Some(vec![slice(4, 0, 10)]), "{first}");
    }
}

#[test]
fn another_chain_is_read_anew() {
    let mut chain = Chain::default();
    chain.find(&mut TestChunks::new(0, &[7, 3, 9]), at(0), 3 * C);
    // All chunks were freed; later bytes are in others.
    let mut memory = TestChunks::new(3 * C + 5, &[2, 8]);
    let found = vec![slice(2, 0, C), slice(8, 0, 7)];
    assert_eq!(chain.find(&mut memory, at(3 * C + 5), C + 7), Some(found));
    let mut memory = TestChunks::new(100 * C + 5, &[3, 9]);
    let found = vec![slice(3, 0, C), slice(9, 0, 7)];
    assert_eq!(chain.find(&mut memory, at(100 * C + 5), C + 7), Some(found));
    // Another connection, with sequence numbers below those of the last.
    let mut memory = TestChunks::new(50 * C, &[1, 5]);
    assert_eq!(chain.find(&mut memory, at(51 * C), 7), Some(vec![slice(5, 0, 7)]));
}

#[test]
fn another_chain_that_begins_where_a_chunk_of_the_last_did_is_read_anew() {
    let mut chain = Chain::default();
    chain.find(&mut TestChunks::new(0, &[7, 3, 9]), at(0), 3 * C);
    let mut memory = TestChunks::new(C, &[2, 8]);
    let found = vec![slice(2, 0, C), slice(8, 0, 7)];
    assert_eq!(chain.find(&mut memory, at(C), C + 7), Some(found));
}
