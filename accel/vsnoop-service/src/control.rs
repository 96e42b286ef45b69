//! The control socket: a line of JSON each way, on `/run/vsnoop/service.sock`.
//!
//! Only root, or the user of the service, may ask: the kernel says who a client is (SO_PEERCRED).
//! Both lines have a version; one that the other side does not know is refused. A thread of its own
//! takes one client after the other, each within [`PATIENCE`]. The service's loop publishes its
//! state to that thread, and the thread wakes the loop up for a reload, and for a look before it
//! tells the state.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use vsnoop_host::error::{Unfit, unfit};
use vsnoop_host::lock::DIRECTORY;

use crate::error::{Error, Result};

/// Raised when a line has another meaning than before.
const VERSION: u32 = 1;
const SOCKET: &str = "service.sock";
/// Longest request. An answer may be longer: it comes from the service.
const LINE_BYTES: u64 = 4096;
/// A client must send its line and take the answer within this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// A client that asks for the state waits this long for the service to look. One that is at work
/// for longer is told what was before.
const LOOK: Duration = Duration::from_millis(500);
/// A client waits this long: the service may be busy. Its thread gives up before, and says so.
const PATIENCE_WITH_SERVICE: Duration = Duration::from_secs(60);
const PATIENCE_WITH_LOOP: Duration = Duration::from_secs(50);

#[derive(Debug, Serialize, Deserialize)]
struct Line<T> {
    version: u32,
    #[serde(flatten)]
    content: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub enum Request {
    Status,
    Reload,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "lowercase")]
pub enum Response {
    Status(State),
    /// Names of the tables `[[port]]` now.
    Reloaded {
        tables: Vec<String>,
    },
    Refused {
        reason: String,
    },
}

/// The state that only the service knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub pid: i32,
    pub file: PathBuf,
    /// Names of the tables `[[port]]`.
    pub tables: Vec<String>,
    /// Taps that should be attached and cannot be.
    pub failed: Vec<FailedPort>,
    /// Taps that an operator has detached, and that stay off until a reload. A service of an older
    /// version names none.
    #[serde(default)]
    pub detached_by_operator: Vec<DetachedTap>,
    /// Taps that are left alone, because no VM is behind them. A service of an older version names
    /// none.
    #[serde(default)]
    pub no_vms: Vec<FailedPort>,
    /// QMP monitors that cannot be used. A service of an older version names none.
    #[serde(default)]
    pub failed_monitors: Vec<FailedMonitor>,
    /// Where it answers Prometheus, and why it does not. A service of an older version says
    /// neither.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    #[serde(default)]
    pub metrics_failed: Option<String>,
    /// Lines of its log that were lost. A service of an older version does not say it.
    #[serde(default)]
    pub log_lines_lost: u64,
}

/// A tap that is not attached, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedPort {
    pub port: String,
    pub netns: u64,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedTap {
    pub port: String,
    /// Inode of its network namespace.
    pub netns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedMonitor {
    /// Path of its socket; for people.
    pub path: String,
    pub reason: String,
}

/// A reload that a client waits for.
pub struct Order {
    reply: mpsc::Sender<Response>,
}

impl Order {
    pub fn answer(self, response: Response) {
        // A client that has gone away wants no answer.
        let _ = self.reply.send(response);
    }
}

/// The state that the loop has published.
#[derive(Default)]
struct Published {
    state: State,
    /// How often the state was asked for; when the present look began; when that look began whose
    /// state this is.
    asked: u64,
    asked_before_look: u64,
    asked_before_state: u64,
}

#[derive(Default)]
struct Shared {
    published: Mutex<Published>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The service's end.
pub struct Server {
    shared: Arc<Shared>,
    orders: mpsc::Receiver<Order>,
    socket: PathBuf,
}

impl Server {
    /// Listens. The caller holds the lock of the service, so that a socket which is there was left
    /// by one that is gone. What is written to `waker` wakes the loop up.
    pub fn open(waker: UnixStream) -> Result<Self> {
        Self::open_at(&Path::new(DIRECTORY).join(SOCKET), waker)
    }

    fn open_at(socket: &Path, waker: UnixStream) -> Result<Self> {
        let failed = |source| Error::Control { socket: socket.to_owned(), source };
        match fs::remove_file(socket) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(socket).map_err(failed)?;
        fs::set_permissions(socket, Permissions::from_mode(0o600)).map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let (send, orders) = mpsc::channel();
        let answering = Answering { shared: Arc::clone(&shared), orders: send, waker };
        thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || answering.serve(&listener))
            .map_err(failed)?;
        Ok(Self { shared, orders, socket: socket.to_owned() })
    }

    /// Begins a look at the host: the next [`Self::publish`] answers those who have asked before
    /// it.
    pub fn begin_look(&self) {
        let mut published = self.shared.lock();
        published.asked_before_look = published.asked;
    }

    pub fn publish(&self, state: State) {
        let mut published = self.shared.lock();
        published.state = state;
        published.asked_before_state = published.asked_before_look;
        self.shared.changed.notify_all();
    }

    /// The next one, if a client waits.
    pub fn order(&self) -> Option<Order> {
        self.orders.try_recv().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.socket) {
            tracing::debug!("{}: {error}", self.socket.display());
        }
    }
}

/// The thread's part.
struct Answering {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    waker: UnixStream,
}

impl Answering {
    fn serve(&self, listener: &UnixListener) {
        for client in listener.incoming() {
            let done = client.and_then(|client| self.answer(client));
            if let Err(error) = done {
                tracing::debug!("a client of the control socket: {error}");
            }
        }
    }

    fn answer(&self, mut client: UnixStream) -> io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        let user = getsockopt(&client, PeerCredentials)?.uid();
        let response = match may_ask(user, geteuid().as_raw()) {
            true => self.respond(&read_line(&client)?),
            false => refused("only root and the user of the service may ask"),
        };
        write_line(&mut client, response)
    }

    fn respond(&self, line: &[u8]) -> Response {
        match parse(line) {
            Ok(Request::Status) => Response::Status(self.state()),
            Ok(Request::Reload) => self.have_reloaded(),
            Err(reason) => refused(reason),
        }
    }

    /// After a look that begins now, if that takes no longer than [`LOOK`].
    fn state(&self) -> State {
        let own = {
            let mut published = self.shared.lock();
            published.asked += 1;
            published.asked
        };
        self.wake();
        let is_old = |published: &mut Published| published.asked_before_state < own;
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), LOOK, is_old);
        waited.unwrap_or_else(PoisonError::into_inner).0.state.clone()
    }

    fn wake(&self) {
        // One that is full wakes the loop up as well.
        let _ = (&self.waker).write(&[0]);
    }

    fn have_reloaded(&self) -> Response {
        let (reply, answer) = mpsc::channel();
        let sent = self.orders.send(Order { reply }).is_ok();
        self.wake();
        match answer.recv_timeout(PATIENCE_WITH_LOOP) {
            Ok(response) if sent => response,
            _ => refused("the service gives no answer: it may be ending, or reload later"),
        }
    }
}

/// `own`: the user of the service.
fn may_ask(user: u32, own: u32) -> bool {
    user == 0 || user == own
}

fn parse<T: for<'a> Deserialize<'a>>(line: &[u8]) -> std::result::Result<T, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let said = |error: serde_json::Error| format!("the line is not understood: {error}");
    let version = serde_json::from_slice::<Version>(line).map_err(said)?.version;
    if version != VERSION {
        return Err(format!(
            "the other side speaks version {version}, not {VERSION}: restart the service after an upgrade"
        ));
    }
    serde_json::from_slice::<Line<T>>(line).map(|line| line.content).map_err(said)
}

fn refused(reason: impl Into<String>) -> Response {
    Response::Refused { reason: reason.into() }
}

fn read_line(stream: &UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE_BYTES)).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn write_line<T: Serialize>(stream: &mut UnixStream, content: T) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Line { version: VERSION, content })?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Does a service run on this host? Waits for no answer.
pub fn is_served() -> bool {
    UnixStream::connect(Path::new(DIRECTORY).join(SOCKET)).is_ok()
}

/// Asks the service of this host; `None` if none runs.
pub fn ask(request: Request) -> Result<Option<Response>> {
    ask_at(&Path::new(DIRECTORY).join(SOCKET), request)
}

fn ask_at(socket: &Path, request: Request) -> Result<Option<Response>> {
    let failed = |source| Error::Ask { socket: socket.to_owned(), source };
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            return Ok(None);
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let text =
                format!("the service at {} answers root: run vsnoop as root", socket.display());
            return Err(unfit(Unfit::Privilege, text).into());
        }
        Err(error) => return Err(failed(error)),
    };
    stream.set_read_timeout(Some(PATIENCE_WITH_SERVICE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    write_line(&mut stream, request).map_err(failed)?;
    let mut line = Vec::new();
    BufReader::new(&stream).read_until(b'\n', &mut line).map_err(failed)?;
    parse(&line).map(Some).map_err(|reason| failed(io::Error::new(ErrorKind::InvalidData, reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that goes with the test.
    struct SocketPath(PathBuf);

    impl SocketPath {
        fn new(test: &str) -> Self {
            Self(std::env::temp_dir().join(format!("vsnoop-service-{}-{test}", std::process::id())))
        }
    }

    fn raw(path: &SocketPath, line: &str) -> String {
        let mut stream = UnixStream::connect(&path.0).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_service_says_what_it_has_published_and_reloads_when_it_is_asked() {
        let path = SocketPath::new("asked");
        assert_eq!(ask_at(&path.0, Request::Status).unwrap(), None, "none runs");
        let (waker, mut woken) = UnixStream::pair().unwrap();
        let server = Server::open_at(&path.0, waker).unwrap();
        let mode = fs::metadata(&path.0).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let state = State { pid: 7, tables: vec!["web".into()], ..State::default() };
        // A state from before the request is the answer only where no other comes.
        server.publish(State { pid: 6, ..State::default() });
        thread::scope(|scope| {
            let asking = scope.spawn(|| ask_at(&path.0, Request::Status).unwrap());
            woken.read_exact(&mut [0]).unwrap();
            server.begin_look();
            server.publish(state.clone());
            assert_eq!(asking.join().unwrap(), Some(Response::Status(state.clone())));
        });
        let status = ask_at(&path.0, Request::Status).unwrap();
        woken.read_exact(&mut [0]).unwrap();
        assert_eq!(status, Some(Response::Status(state)));
        let reloaded = Response::Reloaded { tables: vec!["db".into()] };
        thread::scope(|scope| {
            let asking = scope.spawn(|| ask_at(&path.0, Request::Reload).unwrap());
            woken.read_exact(&mut [0]).unwrap();
            server.order().unwrap().answer(reloaded.clone());
            assert_eq!(asking.join().unwrap(), Some(reloaded));
        });
        drop(server);
        assert!(!path.0.exists());
    }

    #[test]
    fn another_version_and_other_lines_are_refused() {
        let path = SocketPath::new("refused");
        let _server = Server::open_at(&path.0, UnixStream::pair().unwrap().0).unwrap();
        for (line, word) in [
            ("{\"version\":2,\"request\":\"status\"}\n", "version 2, not 1"),
            ("{\"request\":\"status\"}\n", "missing field `version`"),
            ("{\"version\":1,\"request\":\"dance\"}\n", "unknown variant `dance`"),
            ("hello\n", "not understood"),
        ] {
            let answer = raw(&path, line);
            assert!(answer.contains("\"response\":\"refused\""), "{answer}");
            assert!(answer.contains(word), "{word:?} is not in: {answer}");
        }
    }

    #[test]
    fn root_and_the_user_of_the_service_may_ask_and_nobody_else() {
        assert!(may_ask(0, 0) && may_ask(0, 7) && may_ask(7, 7));
        assert!(!may_ask(7, 0) && !may_ask(7, 8));
    }
}
