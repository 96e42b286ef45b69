//! ICMP messages about lost packets, IPv4.

/// A router's report of a packet that cannot go on.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub mtu: u16,
    /// 1: the host is unreachable; 4: the packet needs to be fragmented.
    pub code: u8,
}

impl Report {
    /// The message to the packet's sender, RFC 792: "destination unreachable".
    pub fn about(self, packet: &[u8]) -> Vec<u8> {
        let mut icmp = vec![3, self.code, 0, 0, 0, 0];
        icmp.extend(self.mtu.to_be_bytes());
        icmp.extend(&packet[..28]);
        let sum = checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum);
        let mut message = vec![0x45, 0, 0, 20 + icmp.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0];
        message.extend(&packet[16..20]);
        message.extend(&packet[12..16]);
        let sum = checksum(&message);
        message[10..12].copy_from_slice(&sum);
        message.extend(icmp);
        message
    }
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}
