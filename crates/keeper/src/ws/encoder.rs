//! Frames from a client: always whole messages, always masked.

use super::{CONTROL_PAYLOAD_MAX, OPCODE_CLOSE, OPCODE_PONG, OPCODE_TEXT};

pub(crate) mod close_code {
    pub(crate) const NORMAL: u16 = 1000;
    pub(crate) const GOING_AWAY: u16 = 1001;
}

/// Makes frames. The mask only has to differ from frame to frame: the peer is our own child on a private socket, and
/// masking protects proxies, not secrets.
#[derive(Debug)]
pub(crate) struct Encoder {
    mask_state: u64,
}

impl Encoder {
    pub(crate) fn new(seed: u64) -> Self {
        Self { mask_state: seed }
    }

    pub(crate) fn text(&mut self, out: &mut Vec<u8>, payload: &[u8]) {
        self.frame(out, OPCODE_TEXT, payload);
    }

    pub(crate) fn pong(&mut self, out: &mut Vec<u8>, payload: &[u8]) {
        self.frame(out, OPCODE_PONG, payload.get(..CONTROL_PAYLOAD_MAX).unwrap_or(payload));
    }

    pub(crate) fn close(&mut self, out: &mut Vec<u8>, code: u16) {
        self.frame(out, OPCODE_CLOSE, &code.to_be_bytes());
    }

    fn frame(&mut self, out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
        const FIN: u8 = 0x80;
        const MASKED: u8 = 0x80;
        out.reserve(payload.len() + 14);
        out.push(FIN | opcode);
        match payload.len() {
            short @ 0..=125 => out.push(MASKED | u8::try_from(short).unwrap_or(125)),
            middle @ 126..=0xffff => {
                out.push(MASKED | 126);
                out.extend_from_slice(&u16::try_from(middle).unwrap_or(u16::MAX).to_be_bytes());
            }
            long => {
                out.push(MASKED | 127);
                out.extend_from_slice(&(long as u64).to_be_bytes());
            }
        }
        let mask = self.next_mask();
        out.extend_from_slice(&mask);
        let begin = out.len();
        out.extend_from_slice(payload);
        for chunk in out.get_mut(begin..).unwrap_or_default().chunks_mut(4) {
            for (byte, key) in chunk.iter_mut().zip(mask) {
                *byte ^= key;
            }
        }
    }

    /// The splitmix64 generator.
    fn next_mask(&mut self) -> [u8; 4] {
        self.mask_state = self.mask_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.mask_state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let [a, b, c, d, ..] = (mixed ^ (mixed >> 31)).to_le_bytes();
        [a, b, c, d]
    }
}
