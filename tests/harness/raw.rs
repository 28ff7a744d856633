//! A raw WebSocket client that may break every rule: any frame bits, half a header, no reading, a vanishing act.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::PATIENCE;

/// FIN set, text frame.
pub const TEXT: u8 = 0x81;
/// FIN set, binary frame.
pub const BINARY: u8 = 0x82;
/// FIN set, close frame.
pub const CLOSE: u8 = 0x88;
/// FIN set, ping frame.
pub const PING: u8 = 0x89;
/// FIN set, pong frame.
pub const PONG: u8 = 0x8A;

/// A TCP connection to the gateway, upgraded or not.
pub struct RawClient {
    stream: TcpStream,
}

/// One frame as it came: first byte (FIN, RSV, opcode) and payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// First byte.
    pub bits: u8,
    /// Payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Code and reason, when this is a close frame with a code.
    pub fn close(&self) -> Option<(u16, String)> {
        if self.bits != CLOSE || self.payload.len() < 2 {
            return None;
        }
        let code = u16::from_be_bytes([self.payload[0], self.payload[1]]);
        Some((code, String::from_utf8_lossy(&self.payload[2..]).into_owned()))
    }
}

impl RawClient {
    /// Opens TCP and says nothing.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the gateway accepts");
        let _ = stream.set_nodelay(true);
        Self { stream }
    }

    /// Opens TCP with a receive buffer of about 4 KiB, so that a client which does not read is soon full.
    pub async fn connect_narrow(address: SocketAddr) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a settable buffer");
        Self { stream: socket.connect(address).await.expect("the gateway accepts") }
    }

    /// Upgrades on `target` (path and query) with a key in the header; panics unless the answer is 101.
    pub async fn upgrade(&mut self, target: &str, key: &str) {
        let head = Self::head(target, key);
        self.send(head.as_bytes()).await;
        let answer = self.read_head().await;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    }

    /// A complete request head of an upgrade.
    pub fn head(target: &str, key: &str) -> String {
        format!(
            "GET {target} HTTP/1.1\r\nHost: gateway\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Authorization: Token {key}\r\n\r\n"
        )
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the gateway reads");
    }

    /// Sends bytes as they are, or tells that the gateway has gone.
    pub async fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Sends a masked frame with any first byte.
    pub async fn frame(&mut self, bits: u8, payload: &[u8]) {
        let bytes = encode(bits, Some([1, 2, 3, 4]), payload.len() as u64, payload);
        self.send(&bytes).await;
    }

    /// Sends a frame without a mask, which a client must never do.
    pub async fn unmasked(&mut self, bits: u8, payload: &[u8]) {
        let bytes = encode(bits, None, payload.len() as u64, payload);
        self.send(&bytes).await;
    }

    /// Sends the header of a masked frame that promises `length` bytes, and none of them.
    pub async fn promise(&mut self, bits: u8, length: u64) {
        let bytes = encode(bits, Some([1, 2, 3, 4]), length, &[]);
        self.send(&bytes).await;
    }

    /// The next frame; `None` when the connection ended.
    pub async fn next(&mut self) -> Option<Frame> {
        tokio::time::timeout(PATIENCE, self.read_frame()).await.expect("a frame or the end in time").ok()
    }

    /// Reads up to the end and gives the close frame's code and reason, if there was one.
    pub async fn closed(&mut self) -> Option<(u16, String)> {
        while let Some(frame) = self.next().await {
            if frame.bits == CLOSE {
                return frame.close();
            }
        }
        None
    }

    /// Whether the peer ends the connection (without another byte) in time.
    pub async fn dropped(&mut self) -> bool {
        let mut rest = Vec::new();
        tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await.is_ok()
    }

    /// The answer's head, without its body.
    pub async fn read_head(&mut self) -> String {
        let mut head = Vec::new();
        let read = async {
            while !head.ends_with(b"\r\n\r\n") {
                match self.stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => break,
                }
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("an answer in time");
        String::from_utf8_lossy(&head).into_owned()
    }

    /// Vanishes: the peer gets a reset.
    pub fn vanish(self) {
        self.stream.set_zero_linger().expect("a settable linger");
    }

    async fn read_frame(&mut self) -> std::io::Result<Frame> {
        let bits = self.stream.read_u8().await?;
        let length = match self.stream.read_u8().await? {
            126 => u64::from(self.stream.read_u16().await?),
            127 => self.stream.read_u64().await?,
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(length).expect("a sane length")];
        self.stream.read_exact(&mut payload).await?;
        Ok(Frame { bits, payload })
    }
}

fn encode(bits: u8, mask: Option<[u8; 4]>, length: u64, payload: &[u8]) -> Vec<u8> {
    let flag = if mask.is_some() { 0x80 } else { 0 };
    let mut bytes = vec![bits];
    match length {
        0..=125 => bytes.push(flag | length as u8),
        126..=0xFFFF => {
            bytes.push(flag | 126);
            bytes.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            bytes.push(flag | 127);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
    }
    let mask = mask.inspect(|mask| bytes.extend_from_slice(mask)).unwrap_or([0; 4]);
    bytes.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
    bytes
}
