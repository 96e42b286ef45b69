//! The link's end of the control socket.
//!
//! It has no thread of its own and never waits: [`Server::poll_fd`] becomes readable (it is an
//! epoll of its own, so it may be polled or stand in another epoll) when a client wants something,
//! and [`Server::serve`] then does what can be done at once. A client has a time in which to say
//! its line and to take its answer; one that is stuck costs a descriptor until then, or until
//! others want its slot. `serve` should be called once a second or so even if nothing is readable,
//! for those whose time is over.
//!
//! A process that has no more descriptors still answers one client at a time: the server holds a
//! spare one for that. A client that cannot be taken even so waits until the next call: the
//! listener is not watched until then, for it would stay readable, and the caller would spin.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::fcntl::Flock;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::error::{ControlError, Result};
use super::{LinkFiles, Request, Response};

/// Longest request, and longest answer; for a longer answer the client gets a refusal.
pub const LINE_BYTES: usize = 1 << 20;
/// Clients at a time.
const CLIENTS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(5);
const LISTENER: u64 = 0;

/// Listens for commands, and holds the link's name.
#[derive(Debug)]
pub struct Server {
    files: LinkFiles,
    listener: UnixListener,
    epoll: Epoll,
    /// Given up for a client when there is no other descriptor.
    spare: Option<File>,
    is_listening: bool,
    clients: HashMap<u64, Client>,
    next: u64,
    /// Released last.
    _lock: Flock<File>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    since: Instant,
    request: Vec<u8>,
    /// Once the request was understood, or was not.
    answer: Option<Vec<u8>>,
    written: usize,
}

/// State of a client's request.
enum ClientState {
    Wait,
    /// For room for its answer.
    WaitToWrite,
    Gone,
}

impl Server {
    /// Takes the name of a link; [`super::AlreadyUp`] when another process has it.
    pub fn bind(name: &str) -> Result<Self> {
        Self::bind_at(LinkFiles::new(name))
    }

    pub fn bind_at(files: LinkFiles) -> Result<Self> {
        let lock = files.take_lock()?;
        let path = files.socket_path();
        let listener = UnixListener::bind(&path).map_err(ControlError::path("listen at", &path))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))
            .map_err(ControlError::path("restrict", &path))?;
        listener.set_nonblocking(true).map_err(ControlError::call("set up the control socket"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(ControlError::call("make an epoll"))?;
        epoll
            .add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))
            .map_err(ControlError::call("watch the control socket"))?;
        Ok(Self {
            files,
            listener,
            epoll,
            spare: open_spare(),
            is_listening: true,
            clients: HashMap::new(),
            next: LISTENER + 1,
            _lock: lock,
        })
    }

    /// Readable when there is something to [`serve`](Self::serve).
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Takes requests, calls `handler` for each, and sends answers, as far as that goes without
    /// waiting. When it returns, the answer to [`Request::Down`] has been given to the kernel (it
    /// is short), so that the caller may end.
    pub fn serve(&mut self, handler: &mut dyn FnMut(Request) -> Response) -> Result<()> {
        let now = Instant::now();
        self.clients.retain(|_, client| now.duration_since(client.since) < PATIENCE);
        self.spare = self.spare.take().or_else(open_spare);
        self.set_listening(true);
        let mut events = [EpollEvent::empty(); CLIENTS + 1];
        let ready = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(ready) => ready,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(errno) => return Err(ControlError::call("look at the control socket")(errno)),
        };
        for event in &events[..ready] {
            match event.data() {
                LISTENER => self.accept_client(now),
                id => self.go_on(id, handler),
            }
        }
        Ok(())
    }

    /// Watches the listener, or does not.
    fn set_listening(&mut self, is_to_listen: bool) {
        let events = if is_to_listen { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        if self.is_listening != is_to_listen
            && self.epoll.modify(&self.listener, &mut EpollEvent::new(events, LISTENER)).is_ok()
        {
            self.is_listening = is_to_listen;
        }
    }

    fn accept_client(&mut self, now: Instant) {
        // The rest of them come with the next call.
        for _ in 0..CLIENTS {
            let mut accepted = self.listener.accept();
            if accepted.as_ref().is_err_and(has_no_descriptor) && self.spare.take().is_some() {
                accepted = self.listener.accept();
            }
            if accepted.as_ref().is_err_and(has_no_descriptor) {
                self.set_listening(false);
            }
            let Ok((stream, _)) = accepted else { return };
            if self.clients.len() >= CLIENTS {
                let oldest = self.clients.iter().min_by_key(|(_, client)| client.since);
                if let Some(id) = oldest.map(|(id, _)| *id) {
                    self.clients.remove(&id);
                }
            }
            let id = self.next;
            let watched = stream.set_nonblocking(true).is_ok()
                && self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, id)).is_ok();
            if watched {
                self.next += 1;
                let client =
                    Client { stream, since: now, request: Vec::new(), answer: None, written: 0 };
                self.clients.insert(id, client);
            }
        }
    }

    fn go_on(&mut self, id: u64, handler: &mut dyn FnMut(Request) -> Response) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let step = client.go_on(handler);
        let stays = match step {
            ClientState::Wait => true,
            ClientState::WaitToWrite => {
                let mut event = EpollEvent::new(EpollFlags::EPOLLOUT, id);
                self.epoll.modify(&client.stream, &mut event).is_ok()
            }
            ClientState::Gone => false,
        };
        if !stays {
            self.clients.remove(&id);
        }
    }
}

fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

fn has_no_descriptor(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl Drop for Server {
    fn drop(&mut self) {
        for removed in [self.files.remove_socket(), self.files.remove_lock()] {
            // A link that is another user's now may not: the next command removes both.
            if let Err(error) = removed
                && !error.is_denied()
            {
                tracing::warn!("{}", crate::causes::with_causes(&error));
            }
        }
    }
}

impl Client {
    fn go_on(&mut self, handler: &mut dyn FnMut(Request) -> Response) -> ClientState {
        if self.answer.is_none() {
            match self.read() {
                Ok(true) => self.answer = Some(answer_request(&self.request, handler)),
                Ok(false) => return ClientState::Wait,
                Err(_) => return ClientState::Gone,
            }
        }
        match self.write() {
            Ok(true) | Err(_) => ClientState::Gone,
            Ok(false) => ClientState::WaitToWrite,
        }
    }

    /// Reads on; returns whether the line is complete.
    fn read(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    let line = bytes[..count].iter().position(|byte| *byte == b'\n');
                    self.request.extend_from_slice(&bytes[..line.unwrap_or(count)]);
                    // One that is too long is not read on; what there is of it is no JSON.
                    if line.is_some() || self.request.len() > LINE_BYTES {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Was everything taken?
    fn write(&mut self) -> io::Result<bool> {
        let answer = self.answer.as_deref().unwrap_or_default();
        while self.written < answer.len() {
            match self.stream.write(&answer[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn answer_request(request: &[u8], handler: &mut dyn FnMut(Request) -> Response) -> Vec<u8> {
    let response = if request.len() > LINE_BYTES {
        refuse_request("the request is too long")
    } else {
        match serde_json::from_slice(request) {
            Ok(request) => handler(request),
            Err(error) => refuse_request(format!("the request is not understood: {error}")),
        }
    };
    let mut line = encode_line(&response);
    if line.len() > LINE_BYTES {
        line = self::encode_line(&refuse_request("the answer is too long; ask without --flows"));
    }
    line
}

fn refuse_request(reason: impl Into<String>) -> Response {
    Response::Refused { reason: reason.into() }
}

fn encode_line(response: &Response) -> Vec<u8> {
    let mut line = serde_json::to_vec(response)
        .unwrap_or_else(|_| br#"{"response":"refused","reason":"no JSON"}"#.to_vec());
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, JoinHandle};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use vsnoop_privileges::testing::in_children;

    use super::*;
    use crate::control::{Status, client};

    /// A directory that goes with the test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let name = format!("vsnoop-link-{}-{test}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn files(&self) -> LinkFiles {
            LinkFiles::below(&self.0, "office")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn handle(request: Request) -> Response {
        match request {
            Request::Status { .. } => {
                Response::Status(Box::new(Status { name: "office".into(), ..Status::default() }))
            }
            Request::Set(_) | Request::Log { .. } => refuse_request("no"),
            Request::Down | Request::Reload => Response::Done,
        }
    }

    /// Serves until it is told to end.
    struct Serving(Arc<AtomicBool>, Option<JoinHandle<()>>);

    impl Serving {
        fn start(mut server: Server) -> Self {
            let end = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&end);
            let thread = thread::spawn(move || {
                while !told.load(Ordering::Relaxed) {
                    let mut fds = [PollFd::new(server.poll_fd(), PollFlags::POLLIN)];
                    poll(&mut fds, PollTimeout::from(20u8)).unwrap();
                    server.serve(&mut handle).unwrap();
                }
            });
            Self(end, Some(thread))
        }
    }

    impl Drop for Serving {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            if let Some(thread) = self.1.take() {
                thread.join().unwrap();
            }
        }
    }

    fn status(files: &LinkFiles) -> Status {
        match client::ask_at(files, &Request::Status { addresses: false }).unwrap() {
            Response::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_answered_and_the_files_are_private() {
        let directory = Directory::new("answer");
        let server = Server::bind_at(directory.files()).unwrap();
        let mode =
            |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory.0), 0o700);
        assert_eq!(mode(&directory.files().socket_path()), 0o600);
        let serving = Serving::start(server);
        assert_eq!(status(&directory.files()).name, "office");
        drop(serving);
        assert!(!directory.files().socket_path().exists());
    }

    #[test]
    fn clients_that_are_stuck_do_not_keep_others_waiting() {
        let directory = Directory::new("stuck");
        let server = Server::bind_at(directory.files()).unwrap();
        let socket = directory.files().socket_path();
        let _serving = Serving::start(server);
        let stuck: Vec<_> = (0..3 * CLIENTS)
            .map(|_| {
                let mut stream = UnixStream::connect(&socket).unwrap();
                // The name may belong to another link already.
                let _ = stream.write_all(b"{\"request\":");
                stream
            })
            .collect();
        assert_eq!(status(&directory.files()).name, "office");
        drop(stuck);
    }

    #[test]
    fn without_descriptors_clients_are_answered_one_by_one_and_nothing_spins() {
        let name = "control::server::tests::\
                    without_descriptors_clients_are_answered_one_by_one_and_nothing_spins";
        // The others need descriptors.
        in_children(name, &[""], |_| {
            let directory = Directory::new("descriptors");
            let mut server = Server::bind_at(directory.files()).unwrap();
            let socket = directory.files().socket_path();
            let clients = [(); 3].map(|()| {
                let mut stream = UnixStream::connect(&socket).unwrap();
                stream.write_all(b"{\"request\":\"down\"}\n").unwrap();
                stream
            });
            let mut taken: Vec<_> = std::iter::from_fn(open_spare).collect();
            let is_readable = |server: &Server| {
                let mut fds = [PollFd::new(server.poll_fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
            };
            let answered = |clients: &[UnixStream]| {
                let is_answered = |client: &&UnixStream| {
                    let mut fds = [PollFd::new(client.as_fd(), PollFlags::POLLIN)];
                    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
                };
                clients.iter().filter(is_answered).count()
            };
            for _ in 0..20 {
                server.serve(&mut handle).unwrap();
            }
            assert_eq!(answered(&clients), 3);
            // Another thread has taken its place, too.
            server.spare = None;
            taken.extend(std::iter::from_fn(open_spare));
            drop(taken.pop());
            let mut client = UnixStream::connect(&socket).unwrap();
            client.write_all(b"{\"request\":\"down\"}\n").unwrap();
            taken.extend(std::iter::from_fn(open_spare));
            server.serve(&mut handle).unwrap();
            assert!(!is_readable(&server), "its caller would spin");
            drop(taken);
            server.serve(&mut handle).unwrap();
            server.serve(&mut handle).unwrap();
            assert_eq!(answered(&[client]), 1);
        });
    }

    #[test]
    fn nonsense_is_refused_and_said_so() {
        let directory = Directory::new("nonsense");
        let server = Server::bind_at(directory.files()).unwrap();
        let socket = directory.files().socket_path();
        let _serving = Serving::start(server);
        let long = [b"\"".to_vec(), vec![b'a'; 2 * LINE_BYTES], b"\n".to_vec()].concat();
        for (request, reason) in [
            (&b"\n"[..], "not understood"),
            (b"{\"request\":\"explode\"}\n", "explode"),
            (b"\xff\xfe\n", "not understood"),
            (&long, "too long"),
        ] {
            let mut stream = UnixStream::connect(&socket).unwrap();
            // It stops reading when it has seen enough.
            let _ = stream.write_all(request);
            let mut answer = String::new();
            let _ = BufReader::new(&stream).read_line(&mut answer);
            if !(answer.is_empty() && request.len() > LINE_BYTES) {
                assert!(answer.contains("refused") && answer.contains(reason), "{answer}");
            }
        }
        assert_eq!(status(&directory.files()).name, "office");
    }

    #[test]
    fn a_name_is_had_by_one_at_a_time_and_a_stale_socket_is_in_nobodys_way() {
        let directory = Directory::new("name");
        let first = Server::bind_at(directory.files()).unwrap();
        let error = Server::bind_at(directory.files()).unwrap_err();
        assert!(matches!(error, ControlError::AlreadyUp(_)), "{error}");
        assert!(directory.files().is_taken().unwrap());
        drop(first);
        // As one that was killed leaves them.
        fs::write(directory.0.join("office.lock"), "1").unwrap();
        drop(UnixListener::bind(directory.files().socket_path()).unwrap());
        assert!(directory.files().socket_path().exists());
        assert!(!directory.files().is_taken().unwrap());
        assert!(!directory.files().socket_path().exists());
        drop(UnixListener::bind(directory.files().socket_path()).unwrap());
        Server::bind_at(directory.files()).unwrap();
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0, "it left something");
    }
}
