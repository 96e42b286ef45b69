//! The HTTP server: `GET /metrics`.
//!
//! It has a thread of its own, with a runtime for all connections, so that no client delays the
//! service. What a client may take is bounded: [`CLIENTS`] connections, of which a new one
//! displaces the oldest; one request each, of [`REQUEST_BYTES`], which must come within
//! [`REQUEST_TIME`]; and [`TIME`] for all. Values are read on a thread for that, by one request at
//! a time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{sleep, timeout};
use vsnoop_host::error::with_causes;

use crate::error::{Error, Result};
use crate::exposition::MEDIA_TYPE;
use crate::scrape::Scrape;

const CLIENTS: usize = 16;
const REQUEST_BYTES: usize = 16 << 10;
const REQUEST_TIME: Duration = Duration::from_secs(5);
const TIME: Duration = Duration::from_secs(20);
/// Pause after a connection could not be accepted: there is no descriptor left, say.
const TROUBLE: Duration = Duration::from_millis(100);

/// The server, which ends when this is dropped.
pub struct Endpoint {
    /// A listener, or `None` to listen no more.
    listeners: mpsc::UnboundedSender<Option<std::net::TcpListener>>,
    at: Option<SocketAddr>,
}

impl Endpoint {
    /// Starts the server, which does not listen yet.
    pub fn start(scrape: Scrape) -> Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .thread_name("scrape")
            .build()
            .map_err(Error::Start)?;
        let (listeners, received) = mpsc::unbounded_channel();
        let scraper = Arc::new(Scraper { turn: Semaphore::new(1), scrape: Mutex::new(scrape) });
        thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || runtime.block_on(serve(received, scraper)))
            .map_err(Error::Start)?;
        Ok(Self { listeners, at: None })
    }

    /// Listens there, and no more where it did before; `None`: nowhere. After an error all is as it
    /// was before.
    pub fn listen(&mut self, at: Option<SocketAddr>) -> Result<()> {
        if self.at == at {
            return Ok(());
        }
        let listener = at.map(open).transpose()?;
        self.listeners.send(listener).map_err(|_| Error::Ended)?;
        self.at = at;
        Ok(())
    }

    /// Where it listens.
    pub fn at(&self) -> Option<SocketAddr> {
        self.at
    }
}

fn open(at: SocketAddr) -> Result<std::net::TcpListener> {
    let listen = || {
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|source| Error::Listen { at, source })
}

/// The state that all connections share.
struct Scraper {
    /// Only the connection that holds the permit reads the values.
    turn: Semaphore,
    scrape: Mutex<Scrape>,
}

async fn serve(
    mut listeners: mpsc::UnboundedReceiver<Option<std::net::TcpListener>>,
    scraper: Arc<Scraper>,
) {
    let mut listener = None;
    let mut clients: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            next = listeners.recv() => match next {
                None => return,
                Some(next) => listener = next.and_then(|next| TcpListener::from_std(next).ok()),
            },
            accepted = accept(&listener) => match accepted {
                Ok(client) => admit(&mut clients, client, &scraper),
                Err(error) => {
                    tracing::debug!("a client of the metrics: {error}");
                    sleep(TROUBLE).await;
                }
            },
        }
    }
}

async fn accept(listener: &Option<TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(client, _)| client),
        None => pending().await,
    }
}

/// The oldest one goes if there are too many.
fn admit(clients: &mut VecDeque<AbortHandle>, client: TcpStream, scraper: &Arc<Scraper>) {
    clients.retain(|client| !client.is_finished());
    if clients.len() >= CLIENTS
        && let Some(oldest) = clients.pop_front()
    {
        oldest.abort();
    }
    let scraper = Arc::clone(scraper);
    let task = tokio::spawn(async move {
        let answer = service_fn(move |request| answer(request, Arc::clone(&scraper)));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIME)
            .max_buf_size(REQUEST_BYTES)
            .keep_alive(false)
            .serve_connection(TokioIo::new(client), answer);
        match timeout(TIME, connection).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("a client of the metrics: {error}"),
            Err(_) => tracing::debug!("a client of the metrics took too long"),
        }
    });
    clients.push_back(task.abort_handle());
}

async fn answer(
    request: Request<Incoming>,
    scraper: Arc<Scraper>,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    Ok(match (is_read, request.uri().path()) {
        (false, _) => {
            let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        (true, "/metrics") => metrics(scraper).await,
        (true, "/") => said(StatusCode::OK, "vsnoop: the metrics are at /metrics\n"),
        (true, _) => said(StatusCode::NOT_FOUND, "only /metrics is here\n"),
    })
}

async fn metrics(scraper: Arc<Scraper>) -> Response<Full<Bytes>> {
    let unavailable = |text: String| said(StatusCode::SERVICE_UNAVAILABLE, text);
    // Clients that go away while they wait leave no work behind.
    let Ok(_turn) = scraper.turn.acquire().await else {
        return unavailable("the service is ending\n".to_owned());
    };
    let reading = Arc::clone(&scraper);
    let read = spawn_blocking(move || {
        reading.scrape.lock().unwrap_or_else(PoisonError::into_inner).read_text()
    });
    match read.await {
        Ok(Ok(text)) => {
            let mut response = Response::new(Full::new(text));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
            response
        }
        Ok(Err(error)) => {
            tracing::debug!("the metrics cannot be read: {}", with_causes(&error));
            unavailable(format!("the values cannot be read: {}\n", with_causes(&error)))
        }
        Err(error) => unavailable(format!("the values cannot be read: {error}\n")),
    }
}

fn said(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
