//! BPF maps, as the programs and user space see them.
//!
//! The values of a map stay at their addresses, as in the kernel: programs keep pointers to them
//! across helpers. Deleted values are kept until the program ends, as RCU does.

use std::collections::{BTreeMap, VecDeque};

/// enum bpf_map_type of linux/bpf.h.
mod kind {
    pub const HASH: u32 = 1;
    pub const ARRAY: u32 = 2;
    pub const PERCPU_ARRAY: u32 = 6;
    pub const LRU_HASH: u32 = 9;
    pub const LPM_TRIE: u32 = 11;
    pub const ARRAY_OF_MAPS: u32 = 12;
    pub const QUEUE: u32 = 22;
    pub const RINGBUF: u32 = 27;
}

/// Flags of an update, linux/bpf.h.
pub const ANY: u64 = 0;
pub const NOEXIST: u64 = 1;
pub const EXIST: u64 = 2;
const ENOENT: i64 = -2;
const E2BIG: i64 = -7;
const EAGAIN: i64 = -11;
const EEXIST: i64 = -17;
const EINVAL: i64 = -22;
/// Header of a record in a ring buffer, bytes.
const RECORD_HEADER: u32 = 8;
/// BPF_RB_*, linux/bpf.h.
const RB_NO_WAKEUP: u64 = 1;
const RB_FORCE_WAKEUP: u64 = 2;

/// CPUs that a program can run on.
pub const CPUS: usize = 4;

/// Bytes at an address that is aligned for any type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    words: Box<[u64]>,
    len: usize,
}

impl Value {
    pub fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(8)].into(), len }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as many bytes as there are words for.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        let mut value = Self::new(bytes.len());
        value.bytes_mut().copy_from_slice(bytes);
        value
    }
}

/// Type and sizes of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub kind: u32,
    pub key_size: usize,
    pub value_size: usize,
    pub max_entries: u32,
}

#[derive(Clone, Debug)]
pub struct Map {
    pub shape: Shape,
    pub entries: Entries,
}

#[derive(Clone, Debug)]
pub enum Entries {
    /// An LRU map also has its keys in the order of use, the latest last.
    Hash { values: BTreeMap<Vec<u8>, Value>, used: Option<VecDeque<Vec<u8>>> },
    /// Consecutive values; per-CPU arrays have one for each CPU.
    Array { values: Value, stride: usize },
    /// Keys with their prefix lengths in front.
    Trie { values: BTreeMap<Vec<u8>, Value> },
    /// Numbers of the inner maps, among those of the port.
    Maps { numbers: BTreeMap<u32, u32> },
    /// First in, first out.
    Queue { values: VecDeque<Vec<u8>> },
    /// Records that were not read yet.
    Ring { records: VecDeque<Vec<u8>>, bytes: u32, is_woken: bool },
}

impl Map {
    pub fn new(shape: Shape) -> Self {
        let entries = match shape.kind {
            kind::HASH => Entries::Hash { values: BTreeMap::new(), used: None },
            kind::LRU_HASH => {
                Entries::Hash { values: BTreeMap::new(), used: Some(VecDeque::new()) }
            }
            kind::ARRAY | kind::PERCPU_ARRAY => {
                let stride = shape.value_size.next_multiple_of(8);
                let copies = if shape.kind == kind::ARRAY { 1 } else { CPUS };
                let len = stride * shape.max_entries as usize * copies;
                Entries::Array { values: Value::new(len), stride }
            }
            kind::LPM_TRIE => Entries::Trie { values: BTreeMap::new() },
            kind::ARRAY_OF_MAPS => Entries::Maps { numbers: BTreeMap::new() },
            kind::QUEUE => Entries::Queue { values: VecDeque::new() },
            kind::RINGBUF => Entries::Ring { records: VecDeque::new(), bytes: 0, is_woken: false },
            other => panic!("maps of type {other} are not simulated"),
        };
        Self { shape, entries }
    }

    /// The value of `key`; of an array of maps the number of the map is found by [`Self::inner`].
    pub fn lookup(&mut self, key: &[u8], cpu: usize) -> Option<*mut u8> {
        let is_per_cpu = self.shape.kind == kind::PERCPU_ARRAY;
        match &mut self.entries {
            Entries::Hash { values, used } => {
                let value = values.get_mut(key)?;
                if let Some(used) = used {
                    used.retain(|other| other != key);
                    used.push_back(key.to_vec());
                }
                Some(value.as_mut_ptr())
            }
            Entries::Array { values, stride } => {
                let mut index = index_of(key) as usize;
                if index >= self.shape.max_entries as usize {
                    return None;
                }
                index += if is_per_cpu { cpu * self.shape.max_entries as usize } else { 0 };
                // SAFETY: within the values.
                Some(unsafe { values.as_mut_ptr().add(index * *stride) })
            }
            Entries::Trie { values } => {
                let covers = |(prefix, _): &(&Vec<u8>, &mut Value)| is_covered(prefix, key);
                let longest =
                    values.iter_mut().filter(covers).max_by_key(|(prefix, _)| index_of(prefix));
                longest.map(|(_, value)| value.as_mut_ptr())
            }
            Entries::Maps { .. } | Entries::Queue { .. } | Entries::Ring { .. } => None,
        }
    }

    /// Number of the inner map at `key`.
    pub fn inner(&self, key: &[u8]) -> Option<u32> {
        let Entries::Maps { numbers } = &self.entries else { return None };
        numbers.get(&index_of(key)).copied()
    }

    /// Like the system call and the helper of this name. The previous value moves to `grave`.
    pub fn update(&mut self, key: &[u8], value: &[u8], flags: u64, grave: &mut Vec<Value>) -> i64 {
        let most = self.shape.max_entries as usize;
        match &mut self.entries {
            Entries::Hash { values, used } => {
                let is_there = values.contains_key(key);
                match flags {
                    NOEXIST if is_there => return EEXIST,
                    EXIST if !is_there => return ENOENT,
                    _ => {}
                }
                if !is_there && values.len() >= most {
                    let Some(used) = used else { return E2BIG };
                    let oldest = used.pop_front().expect("it is full");
                    grave.extend(values.remove(&oldest));
                }
                if let Some(used) = used {
                    used.retain(|other| other != key);
                    used.push_back(key.to_vec());
                }
                grave.extend(values.insert(key.to_vec(), Value::from(value)));
                0
            }
            Entries::Array { values, stride } => {
                let index = index_of(key) as usize;
                if index >= most {
                    return E2BIG;
                }
                let at = index * *stride;
                values.bytes_mut()[at..at + value.len()].copy_from_slice(value);
                0
            }
            Entries::Trie { values } => {
                grave.extend(values.insert(key.to_vec(), Value::from(value)));
                0
            }
            _ => EINVAL,
        }
    }

    pub fn delete(&mut self, key: &[u8], grave: &mut Vec<Value>) -> i64 {
        let (Entries::Hash { values, .. } | Entries::Trie { values }) = &mut self.entries else {
            return EINVAL;
        };
        let gone = values.remove(key);
        if let Entries::Hash { used: Some(used), .. } = &mut self.entries {
            used.retain(|other| other != key);
        }
        let result = if gone.is_some() { 0 } else { ENOENT };
        grave.extend(gone);
        result
    }

    pub fn push(&mut self, value: &[u8]) -> i64 {
        let Entries::Queue { values } = &mut self.entries else { return EINVAL };
        if values.len() >= self.shape.max_entries as usize {
            return E2BIG;
        }
        values.push_back(value.to_vec());
        0
    }

    pub fn pop(&mut self, remove: bool) -> Option<Vec<u8>> {
        let Entries::Queue { values } = &mut self.entries else { return None };
        if remove { values.pop_front() } else { values.front().cloned() }
    }

    /// The first value of a queue, which stays.
    pub fn front(&self) -> Option<&[u8]> {
        let Entries::Queue { values } = &self.entries else { return None };
        values.front().map(Vec::as_slice)
    }

    /// `flags`: as of bpf_ringbuf_output().
    pub fn ring(&mut self, record: &[u8], flags: u64) -> i64 {
        if !self.reserve(record.len()) {
            return EAGAIN;
        }
        self.submit(record, flags);
        0
    }

    /// Reserves room for a record; false if there is none.
    pub fn reserve(&mut self, len: usize) -> bool {
        let Entries::Ring { bytes, .. } = &mut self.entries else { return false };
        let taken = (len as u32).next_multiple_of(8) + RECORD_HEADER;
        let has_room = *bytes + taken <= self.shape.max_entries;
        *bytes += if has_room { taken } else { 0 };
        has_room
    }

    /// Writes a record into the room that was reserved for it.
    pub fn submit(&mut self, record: &[u8], flags: u64) {
        let Entries::Ring { records, is_woken, .. } = &mut self.entries else { return };
        *is_woken |=
            flags & RB_FORCE_WAKEUP != 0 || records.is_empty() && flags & RB_NO_WAKEUP == 0;
        records.push_back(record.to_vec());
    }

    /// Bytes of unread records, with their headers.
    pub fn ring_bytes(&self) -> u64 {
        match &self.entries {
            Entries::Ring { bytes, .. } => u64::from(*bytes),
            _ => 0,
        }
    }

    /// Was a record written that wakes the reader?
    pub fn is_woken(&self) -> bool {
        matches!(&self.entries, Entries::Ring { is_woken: true, .. })
    }

    /// Takes all records.
    pub fn take_records(&mut self) -> Vec<Vec<u8>> {
        let Entries::Ring { records, bytes, is_woken } = &mut self.entries else {
            return Vec::new();
        };
        *bytes = 0;
        *is_woken = false;
        records.drain(..).collect()
    }

    /// Appends all that distinguishes this map's state from another's, without zeros.
    pub fn digest(&self, into: &mut Vec<u8>) {
        let pair = |into: &mut Vec<u8>, key: &[u8], value: &Value| {
            into.extend(key);
            into.extend(value.bytes());
        };
        match &self.entries {
            Entries::Hash { values, .. } | Entries::Trie { values } => {
                values.iter().for_each(|(key, value)| pair(into, key, value));
            }
            Entries::Array { values, .. } => {
                for (index, word) in values.words.iter().enumerate() {
                    if *word != 0 {
                        into.extend((index as u32).to_le_bytes());
                        into.extend(word.to_le_bytes());
                    }
                }
            }
            Entries::Maps { numbers } => {
                numbers.values().for_each(|number| into.extend(number.to_le_bytes()));
            }
            Entries::Queue { values } => values.iter().for_each(|value| into.extend(value)),
            Entries::Ring { records, is_woken, .. } => {
                into.push(u8::from(*is_woken));
                records.iter().for_each(|record| into.extend(record));
            }
        }
        into.push(0xff);
    }
}

/// An array's key, or a trie's prefix length.
fn index_of(key: &[u8]) -> u32 {
    u32::from_le_bytes(key[..4].try_into().expect("keys have four bytes"))
}

/// Does the prefix cover the key, which is at least as long?
fn is_covered(prefix: &[u8], key: &[u8]) -> bool {
    let bits = index_of(prefix) as usize;
    if bits > index_of(key) as usize {
        return false;
    }
    let (whole, rest) = (bits / 8, bits % 8);
    let mask = !(0xffu16 >> rest) as u8;
    prefix[4..4 + whole] == key[4..4 + whole]
        && (rest == 0 || (prefix[4 + whole] ^ key[4 + whole]) & mask == 0)
}
