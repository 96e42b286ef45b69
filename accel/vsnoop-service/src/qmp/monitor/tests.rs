//! `Monitor` against a peer that floods it, or that repeats QEMU's greeting and answers.

use std::fs;
use std::os::unix::net::UnixListener;

use super::*;

/// A monitor and its peer, which neither waits.
fn followed(role: &str, now: Instant) -> (Monitor, UnixStream) {
    let path = std::env::temp_dir().join(format!("vsnoop-{role}-{}.qmp", std::process::id()));
    let listener = UnixListener::bind(&path).expect("listen");
    let monitor = Monitor::connect(&path, now).expect("connect");
    let (qemu, _) = listener.accept().expect("accept");
    qemu.set_nonblocking(true).expect("a socket");
    fs::remove_file(&path).expect("remove the socket");
    (monitor, qemu)
}

fn unread_bytes(monitor: &Monitor) -> usize {
    rustix::io::ioctl_fionread(&monitor.stream).expect("ask") as usize
}

/// Writes lines until there is no room for more.
fn fill(mut qemu: &UnixStream, line: &str) {
    let text = line.repeat(64);
    while qemu.write(text.as_bytes()).is_ok() {}
}

#[test]
fn of_a_flood_a_bounded_part_is_read_in_its_time() {
    let start = Instant::now();
    let (mut monitor, qemu) = followed("flood", start);
    fill(&qemu, "{\"event\": \"RESUME\"}\n");
    let before = unread_bytes(&monitor);
    assert!(before > 4 * READ_BYTES, "{before} bytes are no flood");
    for _ in 0..1000 {
        monitor.attend(start).expect("attended");
    }
    assert_eq!(unread_bytes(&monitor), before - READ_BYTES);
    assert!(monitor.descriptor(start).is_none(), "it is not polled while it rests");
    assert_eq!(monitor.due(start), Some(start + REST));
    assert!(monitor.descriptor(start + REST).is_some());
    monitor.attend(start + REST).expect("attended");
    assert_eq!(unread_bytes(&monitor), before - 2 * READ_BYTES);
}

#[test]
fn repeated_greetings_and_answers_are_answered_once() {
    let start = Instant::now();
    let (mut monitor, mut qemu) = followed("greets", start);
    let lines = "{\"QMP\": {}}\n".repeat(50) + &"{\"return\": {}, \"id\": 1}\n".repeat(50);
    qemu.write_all(lines.as_bytes()).expect("written");
    monitor.attend(start).expect("attended");
    let mut said = vec![0; 65_536];
    let count = qemu.read(&mut said).expect("questions");
    let said = String::from_utf8_lossy(&said[..count]);
    for question in ["qmp_capabilities", "query-status", "query-migrate"] {
        assert_eq!(said.matches(question).count(), 1, "{said}");
    }
}
