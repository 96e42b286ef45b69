//! The contents of streams. All but `/usr/lib` are the same on every machine.
//!
//! Text and log lines are generated from a seed. zstd compresses them like real ones, by a factor
//! of somewhat more than 4 at level 1.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::workspace;

use crate::results::link::Content;

const LIBRARIES: &str = "/usr/lib";

/// `bytes` of a content.
pub fn make(content: Content, bytes: usize) -> Result<Vec<u8>> {
    let mut data = match content {
        Content::Digits | Content::Iperf10s | Content::Iperf30s | Content::Iperf200mb => {
            b"0123456789".repeat(bytes.div_ceil(10))
        }
        Content::Text | Content::TextAgain => make_text(bytes),
        Content::Json => make_json(bytes, 3),
        Content::Usrlib => libraries(bytes)?,
        Content::Xz => xz(bytes)?,
        Content::Random => {
            let mut data = vec![0; bytes];
            fastrand::Rng::with_seed(5).fill(&mut data);
            data
        }
    };
    ensure!(data.len() >= bytes, "there are only {} bytes of {}", data.len(), content.name());
    data.truncate(bytes);
    Ok(data)
}

/// The compression ratios of zstd at levels 1 and 3, as one stream.
pub fn zstd_ratios(data: &[u8]) -> Result<[f64; 2]> {
    let dir = workspace::root()?.join("build/link");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let path = dir.join(format!("zstd-{}-{:x}.partial", std::process::id(), fastrand::u32(..)));
    fs::write(&path, data).with_context(|| format!("write {}", path.display()))?;
    let ratio = |level: &str| {
        let output = Command::new("zstd").args([level, "-c"]).arg(&path).output();
        let output = output.context("run zstd (package zstd)")?;
        ensure!(output.status.success(), "zstd failed ({})", output.status);
        Ok((100.0 * data.len() as f64 / output.stdout.len().max(1) as f64).round() / 100.0)
    };
    let ratios = ratio("-1").and_then(|first| Ok([first, ratio("-3")?]));
    fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    ratios
}

/// Words with the frequencies of Zipf's law (the n-th is 1/n as frequent as the first), some of
/// them in recurring phrases. Now and then a recent piece of the text is repeated, as in real
/// texts.
fn make_text(bytes: usize) -> Vec<u8> {
    const WORDS: usize = 12_000;
    const PHRASES: usize = 300;
    const PHRASE_SHARE: f64 = 0.07;
    const AGAIN_SHARE: f64 = 0.17;
    /// The distance in pieces of the text that is repeated.
    const RECENT: usize = 40;
    let mut random = fastrand::Rng::with_seed(1);
    let syllables: Vec<String> = (0..200)
        .map(|_| {
            let mut pick = |letters: &[u8]| char::from(letters[random.usize(..letters.len())]);
            let (a, b) = (pick(b"bcdfghlmnprstvw"), pick(b"aeiou"));
            if pick(b"abc") == 'a' {
                format!("{a}{b}{}", pick(b"lnrst"))
            } else {
                format!("{a}{b}")
            }
        })
        .collect();
    let words: Vec<String> = (0..WORDS)
        .map(|rank| {
            // Frequent words are short.
            let length = 1 + random.usize(..2) + usize::from(rank > 100) + usize::from(rank > 3000);
            (0..length).map(|_| syllables[random.usize(..syllables.len())].as_str()).collect()
        })
        .collect();
    let by_rank = |random: &mut fastrand::Rng, most: usize| {
        let rank = (most as f64).powf(random.f64()) as usize;
        rank.min(most - 1)
    };
    let phrases: Vec<String> = (0..PHRASES)
        .map(|_| {
            let length = 4 + random.usize(..12);
            let words: Vec<_> =
                (0..length).map(|_| words[by_rank(&mut random, WORDS)].as_str()).collect();
            words.join(" ")
        })
        .collect();
    let mut data = Vec::with_capacity(bytes + 1024);
    let mut column = 0;
    // Where the last pieces begin.
    let mut recent = VecDeque::from([0; RECENT]);
    while data.len() < bytes {
        let piece = if random.f64() < AGAIN_SHARE && data.len() > 1000 {
            let begin = recent[random.usize(..RECENT)];
            let end = data.len().min(begin + random.usize(20..60));
            let again = String::from_utf8_lossy(&data[begin..end]);
            Cow::Owned(again.replace('\n', " "))
        } else if random.f64() < PHRASE_SHARE {
            Cow::Borrowed(phrases[by_rank(&mut random, PHRASES)].as_str())
        } else {
            Cow::Borrowed(words[by_rank(&mut random, WORDS)].as_str())
        };
        recent.pop_front();
        recent.push_back(data.len());
        data.extend_from_slice(piece.as_bytes());
        column += piece.len();
        let end: &[u8] = match random.u8(..12) {
            _ if column > 90 => b"\n",
            0 => b". ",
            1 => b", ",
            _ => b" ",
        };
        data.extend_from_slice(end);
        if column > 90 {
            column = 0;
        }
    }
    data
}

/// Lines of a web server's log.
fn make_json(bytes: usize, seed: u64) -> Vec<u8> {
    const LEVELS: [&str; 4] = ["info", "info", "info", "warning"];
    const METHODS: [&str; 3] = ["GET", "GET", "POST"];
    const STATUS: [u16; 6] = [200, 200, 200, 204, 304, 404];
    const SERVICES: [&str; 5] = ["gateway", "catalogue", "basket", "payment", "search"];
    let mut random = fastrand::Rng::with_seed(seed);
    let paths: Vec<_> = (0..400)
        .map(|n| format!("/api/v1/{}/items/{}", SERVICES[n % 5], random.u32(1000..99_999)))
        .collect();
    let mut data = Vec::with_capacity(bytes + 1024);
    let mut milliseconds: u64 = 1_790_000_000_000;
    while data.len() < bytes {
        milliseconds += random.u64(..40);
        let pick = random.usize(..);
        // Writing to a vector cannot fail.
        let _ = writeln!(
            data,
            "{{\"time\":\"{}.{:03}\",\"level\":\"{}\",\"service\":\"{}\",\"host\":\"node-{:02}\",\
             \"method\":\"{}\",\"path\":\"{}\",\"status\":{},\"bytes\":{},\"duration_us\":{},\
             \"client\":\"10.{}.{}.{}\",\"trace_id\":\"{:032x}\",\"etag\":\"{:032x}\"}}",
            milliseconds / 1000,
            milliseconds % 1000,
            LEVELS[pick % 4],
            SERVICES[pick / 4 % 5],
            pick / 20 % 24,
            METHODS[pick / 480 % 3],
            paths[random.usize(..paths.len())],
            STATUS[random.usize(..6)],
            random.u32(200..60_000),
            random.u32(100..90_000),
            random.u8(..4),
            random.u8(..),
            random.u8(..),
            random.u128(..),
            random.u128(..)
        );
    }
    data
}

/// Shared libraries of this machine, in the order of their names.
fn libraries(bytes: usize) -> Result<Vec<u8>> {
    let mut files = Vec::new();
    collect(PathBuf::from(LIBRARIES), 3, &mut files);
    files.sort();
    let mut data = Vec::with_capacity(bytes);
    for file in files {
        if data.len() >= bytes {
            break;
        }
        // Files that cannot be read are left out.
        if let Ok(library) = fs::read(&file) {
            data.extend_from_slice(&library);
        }
    }
    Ok(data)
}

fn collect(dir: PathBuf, depth: usize, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        if kind.is_dir() && depth > 0 {
            collect(path, depth - 1, files);
        } else if kind.is_file() && entry.file_name().to_string_lossy().contains(".so") {
            files.push(path);
        }
    }
}

/// Log lines compressed by xz. Compression takes seconds, so the result is kept in a file.
fn xz(bytes: usize) -> Result<Vec<u8>> {
    const LOG_PER_XZ: usize = 6;
    let dir = workspace::root()?.join("build/link");
    let path = dir.join(format!("xz-{bytes}"));
    if let Ok(data) = fs::read(&path)
        && data.len() >= bytes
    {
        return Ok(data);
    }
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let log = dir.join("log.partial");
    fs::write(&log, make_json(bytes * LOG_PER_XZ, 4))
        .with_context(|| format!("write {}", log.display()))?;
    let output = Command::new("xz")
        .args(["-0", "-T0", "--stdout"])
        .arg(&log)
        .stderr(Stdio::inherit())
        .output()
        .context("run xz (package xz-utils)")?;
    fs::remove_file(&log).with_context(|| format!("remove {}", log.display()))?;
    ensure!(output.status.success(), "xz failed ({})", output.status);
    let partial = dir.join("xz.partial");
    fs::write(&partial, &output.stdout).with_context(|| format!("write {}", partial.display()))?;
    fs::rename(&partial, &path).with_context(|| format!("make {}", path.display()))?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_compress_as_well_as_what_they_stand_for() {
        const BYTES: usize = 20_000_000;
        let ratios = |content| zstd_ratios(&make(content, BYTES).unwrap()).unwrap();
        let text = ratios(Content::Text);
        assert!((4.2..4.6).contains(&text[0]) && (4.6..5.6).contains(&text[1]), "text: {text:?}");
        let json = ratios(Content::Json);
        assert!((3.9..4.5).contains(&json[0]), "json: {json:?}");
        assert!(ratios(Content::Random)[0] < 1.001);
    }

    #[test]
    fn a_content_is_the_same_every_time_and_has_its_length() {
        for content in [Content::Digits, Content::Text, Content::Json, Content::Random] {
            let one = make(content, 100_001).unwrap();
            assert_eq!(one.len(), 100_001);
            assert!(one == make(content, 100_001).unwrap(), "{}", content.name());
        }
    }
}
