//! The protocol with real descriptors: a keeper on a thread, a splitter at the other end of a
//! socketpair.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::client::Keeper;
use super::message::Kept;
use super::store::Store;

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SockFlag::SOCK_CLOEXEC;
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("a pair of sockets")
}

/// Descriptors: three pipes.
fn pipes() -> [OwnedFd; 6] {
    let pipes: Vec<(OwnedFd, OwnedFd)> =
        (0..3).map(|_| nix::unistd::pipe().expect("a pipe")).collect();
    let ends: Vec<OwnedFd> = pipes.into_iter().flat_map(|(read, write)| [read, write]).collect();
    ends.try_into().expect("six")
}

fn keep(keeper: &mut Keeper, id: u64, record: &[u8], parts: &[OwnedFd; 6]) {
    keeper.keep_split(id, record, parts.each_ref().map(AsFd::as_fd));
}

/// Runs a splitter beside a keeper, until the splitter is gone.
fn with<T>(store: &mut Store, splitter: impl FnOnce(&mut Keeper) -> T) -> T {
    let (near, far) = pair();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let served =
            scope.spawn(|| store.serve_splitter(far.as_fd(), || over.load(Ordering::Relaxed)));
        let mut keeper = Keeper::connected(near);
        let result = splitter(&mut keeper);
        drop(keeper);
        served.join().expect("no panic").expect("served");
        result
    })
}

/// Looks until the keeper has handed over all.
fn taken(keeper: &mut Keeper) -> Vec<Kept> {
    let mut all = Vec::new();
    while !keeper.is_ready() {
        all.extend(keeper.find_kept());
        thread::yield_now();
    }
    all
}

fn write(to: &OwnedFd, bytes: &[u8]) {
    File::from(to.try_clone().expect("a duplicate")).write_all(bytes).expect("written");
}

fn read_all(from: &OwnedFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::from(from.try_clone().expect("a duplicate")).read_to_end(&mut bytes).expect("read");
    bytes
}

#[test]
fn the_next_splitter_gets_what_a_killed_one_had() {
    let mut store = Store::new(8);
    with(&mut store, |keeper| {
        assert!(taken(keeper).is_empty());
        for id in [3, 7] {
            let parts = pipes();
            write(&parts[1], format!("bytes of {id}").as_bytes());
            keep(keeper, id, &[id as u8; 200], &parts);
            // The descriptors of this end are closed here, as by its death.
        }
    });
    assert_eq!(store.count(), 2);
    // More than one splitter may die, each before it has read anything.
    drop(pair());
    let kept = with(&mut store, taken);
    for (one, id) in kept.into_iter().zip([3, 7]) {
        assert_eq!((one.id, one.record), (id, vec![id as u8; 200]));
        let [read, write, ..] = one.parts;
        drop(write);
        // The keeper still has the end that writes.
        let mut bytes = [0; 10];
        File::from(read).read_exact(&mut bytes).expect("the bytes of the pipe");
        assert_eq!(bytes, *format!("bytes of {id}").as_bytes());
    }
    assert_eq!(store.count(), 2, "until it is said that they are over");
}

#[test]
fn what_is_over_is_closed() {
    let mut store = Store::new(8);
    let parts = pipes();
    let reader = parts[0].try_clone().expect("a duplicate");
    with(&mut store, |keeper| {
        taken(keeper);
        keep(keeper, 1, b"", &parts);
        keep(keeper, 2, b"", &pipes());
        write(&parts[1], b"x");
        drop(parts);
        keeper.forget_others(|id| id == 2);
        assert!(!keeper.has(1) && keeper.has(2));
    });
    assert_eq!(store.count(), 1);
    // Its end is seen: no process has the end that writes.
    assert_eq!(read_all(&reader), b"x");
}

#[test]
fn no_more_than_the_keepers_room_is_kept() {
    let mut store = Store::new(2);
    with(&mut store, |keeper| {
        keep(keeper, 9, b"", &pipes());
        assert!(!keeper.has(9), "not before it is known what is kept");
        taken(keeper);
        (1..=3).for_each(|id| keep(keeper, id, b"", &pipes()));
        assert_eq!([1, 2, 3].map(|id| keeper.has(id)), [true, true, false]);
    });
    assert_eq!(store.count(), 2);
}

#[test]
fn more_than_a_socket_has_room_for_is_handed_over_and_kept_at_later_tries() {
    const COUNT: u64 = 1500;
    let parts = pipes();
    let mut store = Store::new(COUNT as usize);
    with(&mut store, |keeper| {
        taken(keeper);
        // The keeper may be slow: what does not go is tried again.
        while let Some(id) = (1..=COUNT).find(|id| !keeper.has(*id)) {
            keep(keeper, id, &[0; 300], &parts);
        }
    });
    assert_eq!(store.count(), COUNT as usize);
    let mut ids: Vec<u64> = with(&mut store, |keeper| {
        let mut ids = Vec::new();
        while !keeper.is_ready() {
            ids.extend(keeper.find_kept().into_iter().map(|one| one.id));
            thread::yield_now();
        }
        keeper.forget_others(|_| false);
        while (1..=COUNT).any(|id| keeper.has(id)) {
            keeper.forget_others(|_| false);
        }
        ids
    });
    ids.dedup();
    assert_eq!(ids, (1..=COUNT).collect::<Vec<_>>());
    assert!(store.is_empty());
}

#[test]
fn a_splitter_sees_that_the_keeper_is_gone_and_that_numbers_are_new() {
    let (near, far) = pair();
    let mut keeper = Keeper::connected(near);
    let mut store = Store::new(1);
    let over = AtomicBool::new(true);
    store.serve_splitter(far.as_fd(), || over.load(Ordering::Relaxed)).expect("handed over");
    assert!(taken(&mut keeper).is_empty());
    keep(&mut keeper, 1, b"", &pipes());
    assert!(keeper.has(1));
    drop(far);
    // A child of another test may have the descriptor for a moment.
    while keeper.is_ready() {
        assert!(keeper.find_kept().is_empty());
        thread::yield_now();
    }
    assert!(!keeper.has(1));
    let ids: Vec<u64> = (0..1000).map(|_| keeper.next_id()).collect();
    assert!(ids.is_sorted_by(|one, next| one < next));
}

#[test]
fn what_another_program_sends_is_not_kept() {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let (near, far) = pair();
    let parts = pipes();
    let send = |bytes: &[u8], rights: &[i32]| {
        let bytes = [std::io::IoSlice::new(bytes)];
        let rights = [ControlMessage::ScmRights(rights)];
        sendmsg::<()>(near.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None).expect("sent");
    };
    let all = parts.each_ref().map(AsRawFd::as_raw_fd);
    let kept = [2u32.to_ne_bytes(), [0; 4], [1; 4], [0; 4]].concat();
    // Too few descriptors, too many, too short, of no kind, and too long.
    send(&kept, &all[..5]);
    send(&kept, &[all, all].concat());
    send(&kept[..15], &all);
    send(&[0; 16], &all);
    send(&[kept.as_slice(), &[0; 4096]].concat(), &all[..1]);
    let reader = parts[0].try_clone().expect("a duplicate");
    drop(parts);
    drop(near);
    let mut store = Store::new(8);
    // It cannot be told what there is.
    let receive = || super::message::receive(far.as_fd()).expect("received");
    for _ in 0..5 {
        assert!(matches!(receive(), super::message::Incoming::Nothing));
    }
    assert!(matches!(receive(), super::message::Incoming::End));
    assert!(store.serve_splitter(far.as_fd(), || false).is_err() && store.is_empty());
    // None of the descriptors was left open.
    assert_eq!(read_all(&reader), b"");
}
