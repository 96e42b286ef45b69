//! Waiting for several descriptors: epoll, level-triggered, a token for each.
//!
//! A [`Watch`] is of a half of the link, whose descriptors one thread may wait for alone, or
//! another together with those of the other half.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

const EVENTS: usize = 64;

/// Names a descriptor in an epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A set of descriptors that a thread waits for. Other threads may change the set meanwhile.
pub struct Poll {
    epoll: Epoll,
}

impl Poll {
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll })
    }

    /// Starts to watch a descriptor: whether it can be read, or has ended.
    pub fn watch(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token.0))?)
    }

    /// Whether to tell when a watched writer has room.
    pub fn want_room(&self, fd: impl AsFd, token: Token, wanted: bool) -> io::Result<()> {
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, wanted);
        Ok(self.epoll.modify(fd, &mut EpollEvent::new(flags, token.0))?)
    }

    pub fn forget(&self, fd: BorrowedFd<'_>) {
        // It may be gone already.
        let _ = self.epoll.delete(fd);
    }

    /// Tokens of what is ready, after at most `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Token>> {
        let timeout = match timeout {
            None => EpollTimeout::NONE,
            // Rounded up: a deadline that has not come yet must not spin.
            Some(time) => {
                EpollTimeout::try_from(time.as_micros().div_ceil(1000).min(60_000) as i32)
                    .unwrap_or(EpollTimeout::NONE)
            }
        };
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, timeout) {
            Err(nix::Error::EINTR) => 0,
            other => other?,
        };
        Ok(events[..count].iter().map(|event| Token(event.data())).collect())
    }
}

/// The halves of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Egress,
    Ingress,
}

/// Descriptors that a half waits for: in an epoll of its own, and in one that both halves share,
/// where the lowest bit of a token is the half.
pub struct Watch {
    own: Arc<Poll>,
    both: Arc<Poll>,
    half: Half,
}

/// Tokens of a [`Watch`] are at most this.
pub const TOKEN_MAX: Token = Token(u64::MAX >> 1);

impl Watch {
    pub fn new(both: &Arc<Poll>, half: Half) -> io::Result<Self> {
        Ok(Self { own: Arc::new(Poll::new()?), both: Arc::clone(both), half })
    }

    /// The half's own epoll.
    pub fn own(&self) -> Arc<Poll> {
        Arc::clone(&self.own)
    }

    /// Starts to watch a descriptor: whether it can be read, or has ended.
    pub fn watch(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        self.own.watch(&fd, token)?;
        self.both.watch(&fd, self.in_both(token)).inspect_err(|_| self.own.forget(fd.as_fd()))
    }

    /// Whether to tell when a watched writer has room.
    pub fn want_room(&self, fd: impl AsFd, token: Token, wanted: bool) -> io::Result<()> {
        self.own.want_room(&fd, token, wanted)?;
        self.both.want_room(&fd, self.in_both(token), wanted)
    }

    pub fn forget(&self, fd: BorrowedFd<'_>) {
        self.own.forget(fd);
        self.both.forget(fd);
    }

    fn in_both(&self, token: Token) -> Token {
        debug_assert!(token <= TOKEN_MAX, "{token:?}");
        Token(token.0 << 1 | self.half as u64)
    }
}

/// The half that a token of the shared epoll is of, and its token there.
pub fn of_both(token: Token) -> (Half, Token) {
    let half = if token.0 & 1 == Half::Egress as u64 { Half::Egress } else { Half::Ingress };
    (half, Token(token.0 >> 1))
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::EventFd;

    use super::*;

    #[test]
    fn a_half_is_told_of_alone_and_with_the_other() {
        let both = Arc::new(Poll::new().expect("an epoll"));
        let watch = |half| Watch::new(&both, half).expect("an epoll");
        let (egress, ingress) = (watch(Half::Egress), watch(Half::Ingress));
        const SEVEN: Token = Token(7);
        let bells =
            [(&egress, SEVEN), (&ingress, SEVEN), (&ingress, TOKEN_MAX)].map(|(half, token)| {
                let bell = EventFd::from_value(1).expect("an eventfd");
                half.watch(&bell, token).expect("it is watched");
                bell
            });
        let now = Some(Duration::ZERO);
        let told = |poll: &Poll| {
            let mut told = poll.wait(now).expect("it waits");
            told.sort_unstable();
            told
        };
        assert_eq!(told(&egress.own()), [SEVEN]);
        assert_eq!(told(&ingress.own()), [SEVEN, TOKEN_MAX]);
        let all: Vec<_> = told(&both).into_iter().map(of_both).collect();
        assert_eq!(
            all,
            [(Half::Egress, SEVEN), (Half::Ingress, SEVEN), (Half::Ingress, TOKEN_MAX)]
        );
        ingress.forget(bells[1].as_fd());
        assert_eq!(told(&ingress.own()), [TOKEN_MAX]);
        assert_eq!(told(&both).len(), 2);
    }
}
