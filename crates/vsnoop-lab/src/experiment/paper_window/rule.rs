//! The report's own window rule, for one connection, as a state machine.
//!
//! The host acknowledges every segment that is next in order and within the window that it has
//! itself advertised. What it acknowledged goes to the machine at once and is not kept. ACKs of the
//! machine below what was acknowledged are dropped. The window is one of two:
//! - [`Window::Grown`], the report's: each acknowledged MSS lets it grow by two, up to a buffer
//!   size, whatever the machine has advertised;
//! - [`Window::Own`]: the machine's. All else being the same, it shows what the growth alone does.
//!
//! Kept as an experiment only: vsnoop never grows a window so.

/// What the rule looks at in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub seq: u32,
    pub ack: u32,
    pub payload_bytes: u32,
    pub syn: bool,
    pub fin: bool,
    pub rst: bool,
    /// Unscaled.
    pub window: u16,
    /// The shift of its windows, on a SYN.
    pub window_scale: Option<u8>,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
}

/// An ACK that the host writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub seq: u32,
    pub ack: u32,
    /// As it stands in the header.
    pub window: u16,
    pub timestamps: Option<(u32, u32)>,
}

/// What becomes of a segment of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromVm {
    Pass,
    Drop,
    /// With another acknowledgement and window.
    Rewrite {
        ack: u32,
        window: u16,
    },
}

/// Which window the host advertises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    Grown { limit_bytes: u32 },
    Own,
}

#[derive(Clone, Debug)]
pub struct Connection {
    /// NEXT_SEQ: the next byte expected from the sender.
    next: u32,
    /// VM_SEQ: what the machine has acknowledged.
    vm: u32,
    /// The machine's SND.NXT.
    vm_next: u32,
    policy: Window,
    /// RCV_WIN of the grown window, bytes.
    grown_bytes: u32,
    /// The right edge of the machine's own window.
    edge: u32,
    scale: u8,
    vm_timestamp: u32,
}

impl Connection {
    /// Begins with the machine's SYN-ACK, whose window is unscaled.
    pub fn begin(syn_ack: &Segment, policy: Window) -> Self {
        Self {
            next: syn_ack.ack,
            vm: syn_ack.ack,
            vm_next: syn_ack.seq.wrapping_add(1),
            policy,
            grown_bytes: u32::from(syn_ack.window),
            edge: syn_ack.ack.wrapping_add(syn_ack.window.into()),
            scale: syn_ack.window_scale.unwrap_or(0).min(14),
            vm_timestamp: syn_ack.timestamps.map_or(0, |(value, _)| value),
        }
    }

    /// Acknowledged to the sender, but not by the machine.
    pub fn outstanding_bytes(&self) -> u32 {
        self.next.wrapping_sub(self.vm)
    }

    /// A segment of the sender, which goes to the machine in any case; the ACK, if there is one, to
    /// the sender.
    pub fn towards_vm(&mut self, segment: &Segment) -> Option<Ack> {
        let plain = !(segment.syn || segment.fin || segment.rst);
        if !plain || segment.payload_bytes == 0 {
            return None;
        }
        let end = segment.seq.wrapping_add(segment.payload_bytes);
        let edge = self.next.wrapping_add(self.window_bytes());
        if segment.seq == self.next && at_or_before(end, edge) {
            self.next = end;
            if let Window::Grown { limit_bytes } = self.policy {
                let grown = self.grown_bytes.saturating_add(2 * segment.payload_bytes);
                self.grown_bytes = grown.min(limit_bytes).max(self.grown_bytes);
            }
        } else if !at_or_before(end, self.next) {
            // A hole, or beyond the window: for the machine to answer.
            return None;
        }
        let timestamps = segment.timestamps.map(|(value, _)| (self.vm_timestamp, value));
        Some(Ack { seq: self.vm_next, ack: self.next, window: self.header_window(), timestamps })
    }

    pub fn out_of_vm(&mut self, segment: &Segment) -> FromVm {
        if segment.syn || segment.rst {
            return FromVm::Pass;
        }
        if let Some((value, _)) = segment.timestamps {
            self.vm_timestamp = value;
        }
        let end = segment.seq.wrapping_add(segment.payload_bytes).wrapping_add(segment.fin.into());
        if at_or_before(self.vm_next, end) {
            self.vm_next = end;
        }
        if at_or_before(self.vm, segment.ack) {
            self.vm = segment.ack;
        }
        let edge = segment.ack.wrapping_add(u32::from(segment.window) << self.scale);
        let opened = edge != self.edge && at_or_before(self.edge, edge);
        if opened {
            self.edge = edge;
        }
        let news = opened && self.policy == Window::Own;
        if at_or_before(self.next, segment.ack) {
            self.next = segment.ack;
        } else if segment.payload_bytes == 0 && !segment.fin && !news {
            return FromVm::Drop;
        }
        FromVm::Rewrite { ack: self.next, window: self.header_window() }
    }

    fn window_bytes(&self) -> u32 {
        match self.policy {
            Window::Grown { .. } => self.grown_bytes,
            Window::Own if at_or_before(self.next, self.edge) => self.edge.wrapping_sub(self.next),
            Window::Own => 0,
        }
    }

    fn header_window(&self) -> u16 {
        u16::try_from(self.window_bytes() >> self.scale).unwrap_or(u16::MAX)
    }
}

/// Sequence numbers, with wrap-around.
fn at_or_before(a: u32, b: u32) -> bool {
    b.wrapping_sub(a) as i32 >= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1448;
    const LIMIT: u32 = 1 << 20;
    /// So that the stream wraps after two segments.
    const FIRST: u32 = 0u32.wrapping_sub(2 * MSS);

    fn connection() -> Connection {
        under(Window::Grown { limit_bytes: LIMIT })
    }

    fn under(policy: Window) -> Connection {
        let syn_ack = Segment {
            seq: 99,
            ack: FIRST,
            syn: true,
            window: 64_000,
            window_scale: Some(7),
            timestamps: Some((500, 1)),
            ..Segment::default()
        };
        Connection::begin(&syn_ack, policy)
    }

    fn data(number: u32) -> Segment {
        Segment {
            seq: FIRST.wrapping_add(number * MSS),
            payload_bytes: MSS,
            timestamps: Some((7, 500)),
            ..Segment::default()
        }
    }

    fn vm_ack(number: u32) -> Segment {
        let ack = FIRST.wrapping_add(number * MSS);
        Segment { seq: 100, ack, timestamps: Some((600, 7)), ..Segment::default() }
    }

    #[test]
    fn each_acknowledged_mss_opens_the_window_by_two_beyond_that_of_the_machine() {
        let mut connection = connection();
        for number in 0..100 {
            let ack = connection.towards_vm(&data(number)).unwrap();
            let window = 64_000 + 2 * MSS * (number + 1);
            assert_eq!(ack.ack, FIRST.wrapping_add((number + 1) * MSS));
            assert_eq!(u32::from(ack.window), window >> 7);
            assert_eq!((ack.seq, ack.timestamps), (100, Some((500, 7))));
        }
        assert_eq!(connection.outstanding_bytes(), 100 * MSS);
        for number in 100..1000 {
            connection.towards_vm(&data(number));
        }
        assert_eq!(
            connection.towards_vm(&data(1000)).map(|ack| ack.window),
            Some((LIMIT >> 7) as u16)
        );
    }

    #[test]
    fn holes_and_what_is_not_plain_data_are_left_to_the_machine() {
        let mut connection = connection();
        assert_eq!(connection.towards_vm(&data(1)), None);
        assert_eq!(connection.towards_vm(&Segment { fin: true, ..data(0) }), None);
        assert_eq!(connection.towards_vm(&Segment { payload_bytes: 0, ..data(0) }), None);
        assert_eq!(connection.towards_vm(&Segment { payload_bytes: 64_001, ..data(0) }), None);
        assert_eq!(connection.outstanding_bytes(), 0);
        assert!(connection.towards_vm(&data(0)).is_some());
        let again = connection.towards_vm(&data(0)).unwrap();
        assert_eq!(again.ack, FIRST.wrapping_add(MSS), "a retransmission is acknowledged again");
    }

    #[test]
    fn the_machine_says_nothing_that_the_sender_has_heard_already() {
        let mut connection = connection();
        for number in 0..3 {
            connection.towards_vm(&data(number));
        }
        assert_eq!(connection.out_of_vm(&vm_ack(2)), FromVm::Drop);
        assert_eq!(connection.outstanding_bytes(), MSS);
        let answer = Segment { payload_bytes: 10, ..vm_ack(2) };
        let next = FIRST.wrapping_add(3 * MSS);
        assert!(
            matches!(connection.out_of_vm(&answer), FromVm::Rewrite { ack, .. } if ack == next)
        );
        assert!(
            matches!(connection.out_of_vm(&vm_ack(3)), FromVm::Rewrite { ack, .. } if ack == next)
        );
        assert_eq!(connection.outstanding_bytes(), 0);
        let later = connection.towards_vm(&data(3)).unwrap();
        assert_eq!((later.seq, later.timestamps), (110, Some((600, 7))));
        assert_eq!(connection.out_of_vm(&Segment { rst: true, ..vm_ack(0) }), FromVm::Pass);
    }

    #[test]
    fn with_its_own_window_the_machine_is_never_sent_more_than_it_advertised() {
        let mut connection = under(Window::Own);
        let fit = 64_000 / MSS;
        for number in 0..fit {
            let ack = connection.towards_vm(&data(number)).unwrap();
            assert_eq!(u32::from(ack.window), (64_000 - (number + 1) * MSS) >> 7);
        }
        assert_eq!(connection.towards_vm(&data(fit)), None, "beyond the machine's window");
        // An ACK that says nothing new but for its window.
        let update = Segment { window: 1000, ..vm_ack(1) };
        let next = FIRST.wrapping_add(fit * MSS);
        let window = ((MSS + (1000 << 7) - fit * MSS) >> 7) as u16;
        assert_eq!(connection.out_of_vm(&update), FromVm::Rewrite { ack: next, window });
        assert_eq!(connection.out_of_vm(&update), FromVm::Drop);
        assert!(connection.towards_vm(&data(fit)).is_some());
    }
}
