use std::os::unix::net::UnixListener;

use vsnoop_host::config::Config;

use super::*;

/// A socket that was found at a path now, and never tried.
fn entry(now: Instant) -> Entry {
    let state = State::Failed { again_at: now };
    Entry { inode: 1, tries: 0, warned: Warned::new(), trouble: None, state }
}

#[test]
fn each_reason_of_a_failure_is_a_warning_once_in_an_hour() {
    let now = Instant::now();
    let mut entry = entry(now);
    let mut is_warning = |error: &MonitorError, minutes: u64| {
        entry.is_worth_a_warning(error, now + Duration::from_secs(minutes * 60))
    };
    assert!(is_warning(&MonitorError::NoAnswer, 0));
    assert!(!is_warning(&MonitorError::NoAnswer, 59));
    assert!(is_warning(&MonitorError::LongLine, 59), "another reason");
    assert!(is_warning(&MonitorError::NoAnswer, 60));
    assert!(!is_warning(&MonitorError::NoAnswer, 61));
    assert!(is_warning(&MonitorError::ClosedAtOnce, 61));
    assert!(!is_warning(&MonitorError::Closed, 62), "its QEMU has ended");
}

#[test]
fn a_monitor_fails_for_a_reason_unless_its_qemu_has_ended() {
    let now = Instant::now();
    let failed = |errors: &[MonitorError]| {
        let path = PathBuf::from("/vm.qmp");
        let entry = errors.iter().fold(entry(now), |entry, error| entry.failed(&path, error, now));
        Monitors { entries: HashMap::from([(path, entry)]), ..Monitors::default() }.failed()
    };
    assert_eq!(failed(&[]), []);
    let reason = MonitorError::ClosedAtOnce.to_string();
    let expected = [FailedMonitor { path: "/vm.qmp".to_owned(), reason }];
    assert_eq!(failed(&[MonitorError::NoAnswer, MonitorError::ClosedAtOnce]), expected);
    assert_eq!(failed(&[MonitorError::NoAnswer, MonitorError::Closed]), []);
}

#[test]
fn a_process_has_few_open_monitors() {
    let directory = std::env::temp_dir().join(format!("vsnoop-qmp-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let socket = |index: usize| UnixListener::bind(directory.join(format!("{index}.qmp")));
    let _listeners: Vec<_> =
        (0..MOST_OF_PROCESS + 2).map(|index| socket(index).expect("a socket")).collect();
    let text = format!("[[port]]\nqmp = \"{}/*.qmp\"\n", directory.display());
    let patterns = Config::parse(Path::new("/f.toml"), &text).expect("it is right").ports;
    let mut monitors = Monitors::default();
    let now = Instant::now();
    // The second time one is due that is over the bound.
    for now in [now, now + RETRY_FIRST] {
        monitors.follow(&patterns, now);
        let open = monitors.entries.values().filter_map(Entry::pid).count();
        assert_eq!((open, monitors.failed().len()), (MOST_OF_PROCESS, 2));
    }
    std::fs::remove_dir_all(&directory).expect("removed");
}
