//! A client that fetches files over a connection that it keeps open, and compares every byte.
//!
//! curl cannot pause between two requests of a connection, so this one speaks HTTP/1.1 itself.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use vsnoop_guest::pattern::Pattern;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Netns;

/// A download that takes longer has failed: BBR in a VM beside three hogs takes 100 s for 10 MB.
const LIMIT: Duration = Duration::from_secs(600);
/// How often Ctrl-C is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LONGEST_HEADER: usize = 4096;
const READ_BYTES: usize = 256 << 10;

/// A file of a machine, whose bytes are the [`Pattern`] of its size.
#[derive(Clone, Copy, Debug)]
pub struct RemoteFile {
    pub size_bytes: u64,
}

impl RemoteFile {
    pub fn name(self) -> String {
        format!("file-{}", self.size_bytes)
    }

    pub fn seed(self) -> u64 {
        self.size_bytes
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
        let stream = client.run(connect)?;
        stream.set_read_timeout(Some(LOOK_EVERY)).context("set a time limit")?;
        Ok(Self { stream, server, buffer: vec![0; READ_BYTES] })
    }

    /// Fetches a file and compares it; the connection stays open.
    pub fn get(&mut self, file: RemoteFile) -> Result<()> {
        let (name, server) = (file.name(), self.server);
        let deadline = Instant::now() + LIMIT;
        let request = format!("GET /{name} HTTP/1.1\r\nHost: {server}\r\n\r\n");
        self.stream.write_all(request.as_bytes()).context("send the request")?;
        let mut content = Pattern::new(file.seed());
        let first = self.header(file, deadline)?;
        compare(&mut content, &first)?;
        while content.offset_bytes() < file.size_bytes {
            let count = self.receive(deadline)?;
            compare(&mut content, &self.buffer[..count])?;
        }
        let more = content.offset_bytes() - file.size_bytes;
        ensure!(more == 0, "{more} bytes came after the file");
        Ok(())
    }

    /// Reads until the end of the header; returns what came of the file with it.
    fn header(&mut self, file: RemoteFile, deadline: Instant) -> Result<Vec<u8>> {
        const END: &[u8] = b"\r\n\r\n";
        let mut received = Vec::new();
        loop {
            let count = self.receive(deadline)?;
            received.extend(&self.buffer[..count]);
            let end = received.windows(END.len()).position(|bytes| bytes == END);
            let Some(end) = end else {
                ensure!(received.len() < LONGEST_HEADER, "the header has no end");
                continue;
            };
            let rest = received.split_off(end + END.len());
            check_header(&String::from_utf8_lossy(&received), file.size_bytes)?;
            return Ok(rest);
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<usize> {
        loop {
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(anyhow!("the connection ended early")),
                Ok(count) => return Ok(count),
                Err(error) if is_to_look(error.kind()) => {
                    interrupt::check()?;
                    let limit = LIMIT.as_secs();
                    ensure!(Instant::now() < deadline, "not all has come within {limit} s");
                }
                Err(error) => return Err(error).context("receive the response"),
            }
        }
    }
}

/// Whether nothing came, or a signal.
fn is_to_look(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn check_header(header: &str, size_bytes: u64) -> Result<()> {
    let mut lines = header.lines();
    let status = lines.next().unwrap_or_default();
    ensure!(status.split(' ').nth(1) == Some("200"), "the answer is {status:?}");
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
    });
    ensure!(length == Some(size_bytes), "a file of {length:?} bytes, not of {size_bytes}");
    Ok(())
}

fn compare(content: &mut Pattern, received: &[u8]) -> Result<()> {
    let verified = content.verify(received);
    verified.map_err(|offset| anyhow!("the file is wrong from byte {offset} on"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const FILE: RemoteFile = RemoteFile { size_bytes: 5000 };

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
        let stream = TcpStream::connect(server).unwrap();
        Connection { stream, server, buffer: vec![0; READ_BYTES] }
    }

    fn response(header: &str) -> Vec<u8> {
        let mut content = vec![0; FILE.size_bytes as usize];
        Pattern::new(FILE.seed()).fill(&mut content);
        [header.as_bytes(), &content].concat()
    }

    const HEADER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n";

    #[test]
    fn two_files_come_over_one_connection() {
        let mut connection = connection(vec![response(HEADER), response(HEADER)]);
        connection.get(FILE).unwrap();
        connection.get(FILE).unwrap();
    }

    #[test]
    fn a_wrong_byte_an_early_end_and_another_answer_are_errors() {
        let mut wrong = response(HEADER);
        wrong[HEADER.len() + 1234] ^= 1;
        let mut long = response(HEADER);
        long.push(b'.');
        let short = response(HEADER)[..3000].to_vec();
        for (bytes, error) in [
            (wrong, "wrong from byte 1234 on"),
            (long, "wrong from byte"),
            (short, "ended early"),
            (response("HTTP/1.1 404 Not Found\r\n\r\n"), "404"),
            (response("HTTP/1.1 200 OK\r\n\r\n"), "of None bytes"),
        ] {
            let result = connection(vec![bytes]).get(FILE);
            let text = format!("{:#}", result.unwrap_err());
            assert!(text.contains(error) || text.contains("after the file"), "{text}");
        }
    }
}
