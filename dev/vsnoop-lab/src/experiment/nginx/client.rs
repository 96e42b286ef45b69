//! An HTTP client that sends and fetches files, and compares every byte that it gets.
//!
//! A connection stays open until it is dropped, so that a request may come after a pause.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use vsnoop_guest::pattern::Pattern;
use vsnoop_guest::web;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;

/// A request that takes longer has failed: BBR in a VM beside three hogs takes 100 s for 10 MB.
const LIMIT: Duration = Duration::from_secs(600);
/// How often Ctrl-C is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LONGEST_HEADER: usize = 4096;
const BUFFER_BYTES: usize = 256 << 10;

/// A file whose bytes are the [`Pattern`] of a seed.
#[derive(Clone, Debug)]
pub struct File {
    pub name: String,
    pub seed: u64,
    pub size_bytes: u64,
}

impl File {
    /// One that machines serve.
    pub fn served(size_bytes: u64) -> Self {
        Self { name: format!("file-{size_bytes}"), seed: size_bytes, size_bytes }
    }

    pub fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.size_bytes as usize];
        Pattern::new(self.seed).fill(&mut content);
        content
    }
}

/// A connection to a web server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    server: SocketAddr,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn open(client: &Netns, server: SocketAddr) -> Result<Self> {
        let connect = || TcpStream::connect_timeout(&server, LIMIT).context("connect");
        Self::new(client.run(connect)?, server)
    }

    fn new(stream: TcpStream, server: SocketAddr) -> Result<Self> {
        stream.set_read_timeout(Some(LOOK_EVERY)).context("set a time limit")?;
        stream.set_write_timeout(Some(LIMIT)).context("set a time limit")?;
        Ok(Self { stream, server, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Sends a file, to be kept under its name; `content` is that of the file.
    pub fn put(&mut self, file: &File, content: &[u8]) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        let length = format!("Content-Length: {}\r\n", content.len());
        self.ask("PUT", &file.name, &length)?;
        for part in content.chunks(BUFFER_BYTES) {
            interrupt::check()?;
            self.stream.write_all(part).context("send the file")?;
        }
        let (header, _) = self.header(deadline)?;
        check_status(&header, &["201", "204"])
    }

    /// Fetches a file and compares it.
    pub fn get(&mut self, file: &File) -> Result<()> {
        let mut content = Pattern::new(file.seed);
        self.fetch(&file.name, file.size_bytes, |received| {
            let verified = content.verify(received);
            verified.map_err(|offset| anyhow!("the file is wrong from byte {offset} on"))
        })
    }

    /// Fetches the server's small page.
    pub fn get_page(&mut self) -> Result<()> {
        self.fetch(web::PAGE, web::PAGE_BYTES, |_| Ok(()))
    }

    fn ask(&mut self, method: &str, name: &str, more: &str) -> Result<()> {
        let server = self.server;
        let request = format!("{method} /{name} HTTP/1.1\r\nHost: {server}\r\n{more}\r\n");
        self.stream.write_all(request.as_bytes()).context("send the request")
    }

    /// `check` gets the bytes of the file as they come.
    fn fetch(
        &mut self,
        name: &str,
        size_bytes: u64,
        mut check: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        self.ask("GET", name, "")?;
        let (header, first) = self.header(deadline)?;
        check_status(&header, &["200"])?;
        check_length(&header, size_bytes)?;
        check(&first)?;
        let mut received = first.len() as u64;
        while received < size_bytes {
            let count = self.receive(deadline)?;
            check(&self.buffer[..count])?;
            received += count as u64;
        }
        let more = received - size_bytes;
        ensure!(more == 0, "{more} bytes came after the file");
        Ok(())
    }

    /// Reads until the end of the header; the second value is what came of the file with it.
    fn header(&mut self, deadline: Instant) -> Result<(String, Vec<u8>)> {
        const END: &[u8] = b"\r\n\r\n";
        let mut received = Vec::new();
        loop {
            let count = self.receive(deadline)?;
            received.extend(&self.buffer[..count]);
            let end = received.windows(END.len()).position(|bytes| bytes == END);
            if let Some(end) = end {
                let rest = received.split_off(end + END.len());
                return Ok((String::from_utf8_lossy(&received).into_owned(), rest));
            }
            ensure!(received.len() < LONGEST_HEADER, "the header has no end");
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<usize> {
        let limit = LIMIT.as_secs();
        loop {
            interrupt::check()?;
            ensure!(Instant::now() < deadline, "not all has come within {limit} s");
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(anyhow!("the connection ended early")),
                Ok(count) => return Ok(count),
                Err(error) if is_to_look(error.kind()) => {}
                Err(error) => return Err(error).context("receive the response"),
            }
        }
    }
}

/// Whether nothing came, or a signal.
fn is_to_look(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn check_status(header: &str, expected: &[&str]) -> Result<()> {
    let line = header.lines().next().unwrap_or_default();
    let status = line.split(' ').nth(1).unwrap_or_default();
    ensure!(expected.contains(&status), "the answer is {line:?}");
    Ok(())
}

fn check_length(header: &str, size_bytes: u64) -> Result<()> {
    let length = header.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
    });
    ensure!(length == Some(size_bytes), "a file of {length:?} bytes, not of {size_bytes}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A connection to a server that answers requests with these bytes.
    fn connection(responses: Vec<Vec<u8>>) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1000];
            for response in responses {
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(&response).unwrap();
            }
        });
        Connection::new(TcpStream::connect(server).unwrap(), server).unwrap()
    }

    fn response(header: &str) -> Vec<u8> {
        [header.as_bytes(), &File::served(5000).content()].concat()
    }

    const HEADER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n";

    #[test]
    fn two_files_come_over_one_connection() {
        let mut connection = connection(vec![response(HEADER), response(HEADER)]);
        connection.get(&File::served(5000)).unwrap();
        connection.get(&File::served(5000)).unwrap();
    }

    #[test]
    fn a_wrong_byte_an_early_end_and_another_answer_are_errors() {
        let mut wrong = response(HEADER);
        wrong[HEADER.len() + 1234] ^= 1;
        let short = response(HEADER)[..3000].to_vec();
        for (bytes, error) in [
            (wrong, "wrong from byte 1234 on"),
            (short, "ended early"),
            (response("HTTP/1.1 404 Not Found\r\n\r\n"), "404"),
            (response("HTTP/1.1 200 OK\r\n\r\n"), "of None bytes"),
        ] {
            let result = connection(vec![bytes]).get(&File::served(5000));
            let text = format!("{:#}", result.unwrap_err());
            assert!(text.contains(error), "{text}");
        }
    }
}
