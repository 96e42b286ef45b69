//! Map keys and values of link/bpf/divert.h, byte for byte; documented there.
#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, unsafe_code)]

include!(concat!(env!("OUT_DIR"), "/types.rs"));
