//! The language between client and keeper: frames and messages.
//!
//! A frame is a little-endian header (u32 payload length, u16 kind, u16 flags, always 0) and a payload of at most 1 MiB.
//! An unknown kind, a payload that is too long, too short or malformed is a protocol error, and ends the job.

use std::time::Duration;

use crate::codec::{Decoder, Encoder, Malformed};
use crate::event::Event;
use crate::outcome::{Outcome, Reason};
use crate::signal::Signal;

/// The longest payload, in bytes.
pub(crate) const MAX_PAYLOAD: usize = 1 << 20;
const HEADER: usize = 8;

/// What the client says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Request {
    /// A signal for all workers or one; where it came from tells copies of a group's signal apart.
    Signal { signal: Signal, code: i32, sender: i32, rank: Option<u32> },
    /// End the job: SIGTERM, and SIGKILL after the grace.
    Stop { reason: Reason, grace: Duration },
}

/// What the keeper says.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    /// First of all; the pidfds of keeper and guard come with it.
    Hello { version: String },
    /// Something happened.
    Event(Event),
    /// The job is over; the keeper ends now.
    Outcome(Box<Outcome>),
    /// The supervisor cannot go on.
    Error(String),
    /// The guard's program could not be executed: the error number.
    StartFailed(i32),
}

const SIGNAL: u16 = 1;
const STOP: u16 = 2;
const HELLO: u16 = 16;
const EVENT: u16 = 17;
const OUTCOME: u16 = 18;
const ERROR: u16 = 19;
const START_FAILED: u16 = 20;

/// [`Reply::StartFailed`] as a frame, made without allocation: the sender is between fork and exec.
pub(crate) fn start_failure(errno: i32) -> [u8; HEADER + 4] {
    let mut frame = [0; HEADER + 4];
    frame[0] = 4;
    frame[4..6].copy_from_slice(&START_FAILED.to_le_bytes());
    frame[HEADER..].copy_from_slice(&errno.to_le_bytes());
    frame
}

/// A request or reply that was read.
type Decoded<T> = Result<T, Malformed>;

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        match self {
            Self::Signal { signal, code, sender, rank } => {
                e.signal(*signal);
                e.i32(*code);
                e.i32(*sender);
                e.option(rank.as_ref(), |e, rank| e.u32(*rank));
                frame(SIGNAL, e)
            }
            Self::Stop { reason, grace } => {
                e.index(&Reason::ALL, reason);
                e.duration(*grace);
                frame(STOP, e)
            }
        }
    }

    pub(crate) fn decode(frame: &Frame) -> Decoded<Self> {
        let mut d = Decoder(&frame.payload);
        let request = match frame.kind {
            SIGNAL => Self::Signal {
                signal: d.signal()?,
                code: d.i32()?,
                sender: d.i32()?,
                rank: d.option(Decoder::u32)?,
            },
            STOP => Self::Stop { reason: d.index(&Reason::ALL)?, grace: d.duration()? },
            _ => return Err(Malformed),
        };
        d.end(request)
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        match self {
            Self::Hello { version } => {
                e.bytes(version.as_bytes());
                frame(HELLO, e)
            }
            Self::Event(event) => {
                e.event(event);
                frame(EVENT, e)
            }
            Self::Outcome(outcome) => {
                e.outcome(outcome);
                frame(OUTCOME, e)
            }
            Self::Error(text) => {
                e.bytes(text.as_bytes());
                frame(ERROR, e)
            }
            Self::StartFailed(errno) => start_failure(*errno).to_vec(),
        }
    }

    pub(crate) fn decode(frame: &Frame) -> Decoded<Self> {
        let mut d = Decoder(&frame.payload);
        let reply = match frame.kind {
            HELLO => Self::Hello { version: d.text()? },
            EVENT => Self::Event(d.event()?),
            OUTCOME => Self::Outcome(Box::new(d.outcome()?)),
            ERROR => Self::Error(d.text()?),
            START_FAILED => Self::StartFailed(d.i32()?),
            _ => return Err(Malformed),
        };
        d.end(reply)
    }
}

fn frame(kind: u16, payload: Encoder) -> Vec<u8> {
    let payload = payload.finish();
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&kind.to_le_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(&payload);
    frame
}

/// One frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    kind: u16,
    payload: Vec<u8>,
}

/// Puts frames together from pieces; it never asks for a byte beyond the frame it is in, so that a readable socket
/// means an unread frame.
#[derive(Default, Debug)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// How many bytes to read next.
    pub(crate) fn wanted(&self) -> usize {
        match self.length() {
            Some(length) => HEADER + length - self.bytes.len(),
            None => HEADER - self.bytes.len(),
        }
    }

    fn length(&self) -> Option<usize> {
        let length = self.bytes.get(..4)?;
        (self.bytes.len() >= HEADER)
            .then(|| u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize)
    }

    /// Takes what was read, at most [`Self::wanted`] bytes; gives the frame once it is complete.
    pub(crate) fn accept(&mut self, bytes: &[u8]) -> Decoded<Option<Frame>> {
        self.bytes.extend_from_slice(bytes);
        let Some(length) = self.length() else { return Ok(None) };
        let flags = u16::from_le_bytes([self.bytes[6], self.bytes[7]]);
        if length > MAX_PAYLOAD || flags != 0 || self.bytes.len() > HEADER + length {
            return Err(Malformed);
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        let kind = u16::from_le_bytes([self.bytes[4], self.bytes[5]]);
        let payload = self.bytes.split_off(HEADER);
        self.bytes.clear();
        Ok(Some(Frame { kind, payload }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{Frame, Inbox, MAX_PAYLOAD, Reply, Request};
    use crate::codec::Malformed;
    use crate::error::Stage;
    use crate::event::{Event, EventKind};
    use crate::outcome::{Outcome, RankOutcome, RankReason, Reason, SpawnFailure, WaitStatus};
    use crate::pid::Pid;
    use crate::signal::Signal;

    /// Feeds bytes in pieces of what the inbox wants, at most `piece`.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<Frame>, Malformed> {
        let (mut inbox, mut frames, mut rest) = (Inbox::default(), Vec::new(), bytes);
        while !rest.is_empty() {
            let count = inbox.wanted().min(piece).min(rest.len()).max(1);
            let (head, tail) = rest.split_at(count);
            frames.extend(inbox.accept(head)?);
            rest = tail;
        }
        Ok(frames)
    }

    fn replies() -> Vec<Reply> {
        let status = WaitStatus::Signaled(Signal::KILL);
        let kinds = [
            EventKind::Started,
            EventKind::Exec,
            EventKind::SpawnFailed(Stage::Chdir, 2),
            EventKind::Exited(WaitStatus::Exited(7), 1),
            EventKind::Exited(status, 2),
            EventKind::Exited(WaitStatus::Lost, 3),
            EventKind::Signal(Signal::USR1),
            EventKind::Stopping(Reason::Failed),
            EventKind::Swept(3),
            EventKind::GuardLost,
            EventKind::Ended,
        ];
        let event = |kind| Reply::Event(Event { rank: Some(1), pid: Pid::new(77), time_ns: 5, kind });
        let mut replies: Vec<_> = kinds.into_iter().map(event).collect();
        replies.push(Reply::Hello { version: "0.1.0".into() });
        replies.push(Reply::Error("no".into()));
        replies.push(Reply::StartFailed(libc::ENOENT));
        replies.push(Reply::Outcome(Box::new(Outcome {
            job: "j".into(),
            host: "a".into(),
            status: 7,
            reason: Reason::Failed,
            signal: Some(Signal::TERM),
            first_failure: Some(1),
            spawn_failure: Some(SpawnFailure { rank: 1, stage: Stage::Exec, errno: 2 }),
            ranks: vec![RankOutcome {
                rank: 1,
                local_rank: 1,
                pid: Pid::new(77),
                status: Some(status),
                reason: RankReason::Signaled,
                started_ns: Some(1),
                ended_ns: Some(2),
                order: Some(0),
            }],
            swept: 1,
            unkillable: vec![Pid::new(78).unwrap()],
            guard_lost: true,
            started: 0.5,
            ended: 1.5,
        })));
        replies
    }

    #[test]
    fn every_reply_comes_back_whole_in_any_pieces() {
        let bytes: Vec<u8> = replies().iter().flat_map(Reply::encode).collect();
        for piece in [1, 3, 8, usize::MAX] {
            let back: Result<Vec<_>, _> = read(&bytes, piece).unwrap().iter().map(Reply::decode).collect();
            assert_eq!(back.unwrap(), replies());
        }
    }

    #[test]
    fn every_request_comes_back_whole() {
        let requests = [
            Request::Signal { signal: Signal::TERM, code: -6, sender: 12, rank: None },
            Request::Signal { signal: Signal::KILL, code: 0, sender: 0, rank: Some(3) },
            Request::Stop { reason: Reason::Timeout, grace: Duration::from_millis(1500) },
        ];
        let bytes: Vec<u8> = requests.iter().flat_map(Request::encode).collect();
        let back: Result<Vec<_>, _> = read(&bytes, 5).unwrap().iter().map(Request::decode).collect();
        assert_eq!(back.unwrap(), requests);
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_is_read() {
        let mut header = u32::try_from(MAX_PAYLOAD + 1).unwrap().to_le_bytes().to_vec();
        header.extend([1, 0, 0, 0]);
        assert_eq!(read(&header, usize::MAX), Err(Malformed));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn garbage_is_refused_without_a_panic(kind in 0u16..32, payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let frame = Frame { kind, payload };
            let _ = Request::decode(&frame);
            let _ = Reply::decode(&frame);
        }

        #[test]
        fn a_damaged_reply_is_refused_or_read_without_a_panic(
            which in 0usize..15, at in 0usize..400, value: u8, cut in 0usize..400
        ) {
            let mut frame = read(&replies()[which].encode(), usize::MAX).unwrap().remove(0);
            let length = frame.payload.len();
            if let Some(byte) = frame.payload.get_mut(at) {
                *byte = value;
            }
            frame.payload.truncate(length.saturating_sub(cut % 3));
            let _ = Reply::decode(&frame);
        }

        #[test]
        fn any_stream_is_framed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100), piece in 1usize..40) {
            let _ = read(&bytes, piece);
        }
    }
}
