//! The language between client and keeper: frames, messages, and the encoded plan.
//!
//! A frame is a little-endian header (u32 payload length, u16 kind, u16 flags, always 0) and a payload of at most 1 MiB.
//! An unknown kind, a payload that is too long, too short or malformed is a protocol error, and ends the job.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Stage};
use crate::event::{Event, EventKind};
use crate::outcome::{Outcome, RankOutcome, RankReason, Reason, SpawnFailure, WaitStatus};
use crate::pid::Pid;
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

/// The other side sent something else than agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

impl From<Malformed> for Error {
    fn from(_: Malformed) -> Self {
        Self::new(ErrorKind::Protocol, "malformed message between client and keeper")
    }
}

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
                e.frame(SIGNAL)
            }
            Self::Stop { reason, grace } => {
                e.index(&Reason::ALL, reason);
                e.duration(*grace);
                e.frame(STOP)
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
                e.frame(HELLO)
            }
            Self::Event(event) => {
                e.event(event);
                e.frame(EVENT)
            }
            Self::Outcome(outcome) => {
                e.outcome(outcome);
                e.frame(OUTCOME)
            }
            Self::Error(text) => {
                e.bytes(text.as_bytes());
                e.frame(ERROR)
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

/// Appends values to a buffer, little-endian.
#[derive(Default)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }

    fn frame(self, kind: u16) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let mut frame = Vec::with_capacity(HEADER + self.0.len());
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&kind.to_le_bytes());
        frame.extend_from_slice(&[0, 0]);
        frame.extend_from_slice(&self.0);
        frame
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// At most a century, or the other side refuses it.
    pub(crate) fn duration(&mut self, value: Duration) {
        self.u64(value.as_secs());
        self.u32(value.subsec_nanos());
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.count(value.len());
        self.0.extend_from_slice(value);
    }

    pub(crate) fn os(&mut self, value: &OsStr) {
        self.bytes(value.as_bytes());
    }

    fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(crate) fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(crate) fn list<T>(&mut self, values: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.count(values.len());
        for value in values {
            write(self, value);
        }
    }

    /// The place of `value` in a table that both sides have.
    fn index<T: PartialEq>(&mut self, table: &[T], value: &T) {
        let index = table.iter().position(|entry| entry == value).and_then(|index| u8::try_from(index).ok());
        self.u8(index.unwrap_or(u8::MAX));
    }

    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)]
    fn signal(&mut self, signal: Signal) {
        self.u8(signal.number() as u8);
    }

    fn pid(&mut self, pid: Pid) {
        self.i32(pid.get());
    }

    fn status(&mut self, status: WaitStatus) {
        match status {
            WaitStatus::Exited(code) => {
                self.u8(0);
                self.u8(code);
            }
            WaitStatus::Signaled(signal) => {
                self.u8(1);
                self.signal(signal);
            }
            WaitStatus::Lost => {
                self.u8(2);
                self.u8(0);
            }
        }
    }

    fn event(&mut self, event: &Event) {
        self.option(event.rank.as_ref(), |e, rank| e.u32(*rank));
        self.option(event.pid.as_ref(), |e, pid| e.pid(*pid));
        self.u64(event.time_ns);
        match event.kind {
            EventKind::Started => self.u8(0),
            EventKind::Exec => self.u8(1),
            EventKind::SpawnFailed(stage, errno) => {
                self.u8(2);
                self.index(&Stage::ALL, &stage);
                self.i32(errno);
            }
            EventKind::Exited(status, order) => {
                self.u8(3);
                self.status(status);
                self.u32(order);
            }
            EventKind::Signal(signal) => {
                self.u8(4);
                self.signal(signal);
            }
            EventKind::Stopping(reason) => {
                self.u8(5);
                self.index(&Reason::ALL, &reason);
            }
            EventKind::Swept(count) => {
                self.u8(6);
                self.u32(count);
            }
            EventKind::GuardLost => self.u8(7),
            EventKind::Ended => self.u8(8),
        }
    }

    fn outcome(&mut self, outcome: &Outcome) {
        self.bytes(outcome.job.as_bytes());
        self.bytes(outcome.host.as_bytes());
        self.u8(outcome.status);
        self.index(&Reason::ALL, &outcome.reason);
        self.option(outcome.signal.as_ref(), |e, signal| e.signal(*signal));
        self.option(outcome.first_failure.as_ref(), |e, rank| e.u32(*rank));
        self.option(outcome.spawn_failure.as_ref(), |e, failure| {
            e.u32(failure.rank);
            e.index(&Stage::ALL, &failure.stage);
            e.i32(failure.errno);
        });
        self.list(&outcome.ranks, |e, rank| {
            e.u32(rank.rank);
            e.u32(rank.local_rank);
            e.option(rank.pid.as_ref(), |e, pid| e.pid(*pid));
            e.option(rank.status.as_ref(), |e, status| e.status(*status));
            e.index(&RankReason::ALL, &rank.reason);
            e.option(rank.started_ns.as_ref(), |e, time| e.u64(*time));
            e.option(rank.ended_ns.as_ref(), |e, time| e.u64(*time));
            e.option(rank.order.as_ref(), |e, order| e.u32(*order));
        });
        self.u32(outcome.swept);
        self.list(&outcome.unkillable, |e, pid| e.pid(*pid));
        self.bool(outcome.guard_lost);
        self.u64(outcome.started.to_bits());
        self.u64(outcome.ended.to_bits());
    }
}

/// Takes values from a buffer.
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    /// Refuses what is left over.
    pub(crate) fn end<T>(self, value: T) -> Decoded<T> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed) }
    }

    fn take(&mut self, count: usize) -> Decoded<&'a [u8]> {
        if count > self.0.len() {
            return Err(Malformed);
        }
        let (head, tail) = self.0.split_at(count);
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(crate) fn u8(&mut self) -> Decoded<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn bool(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn u16(&mut self) -> Decoded<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Decoded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Decoded<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Decoded<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// At most a century: sums with the clock cannot overflow.
    pub(crate) fn duration(&mut self) -> Decoded<Duration> {
        let (seconds, nanos) = (self.u64()?, self.u32()?);
        let sane = seconds <= 100 * 366 * 86_400 && nanos < 1_000_000_000;
        if sane { Ok(Duration::new(seconds, nanos)) } else { Err(Malformed) }
    }

    pub(crate) fn bytes(&mut self) -> Decoded<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub(crate) fn os(&mut self) -> Decoded<OsString> {
        self.bytes().map(|bytes| OsString::from_vec(bytes.to_vec()))
    }

    pub(crate) fn text(&mut self) -> Decoded<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Malformed)
    }

    pub(crate) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Decoded<T>) -> Decoded<Vec<T>> {
        let count = self.u32()?;
        // No reservation by a number that the other side chose: the buffer's end bounds the loop.
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(read(self)?);
        }
        Ok(values)
    }

    fn index<T: Copy>(&mut self, table: &[T]) -> Decoded<T> {
        table.get(usize::from(self.u8()?)).copied().ok_or(Malformed)
    }

    fn signal(&mut self) -> Decoded<Signal> {
        Signal::new(self.u8()?.into()).ok_or(Malformed)
    }

    fn pid(&mut self) -> Decoded<Pid> {
        Pid::new(self.i32()?).ok_or(Malformed)
    }

    fn status(&mut self) -> Decoded<WaitStatus> {
        match self.u8()? {
            0 => self.u8().map(WaitStatus::Exited),
            1 => self.signal().map(WaitStatus::Signaled),
            2 if self.u8()? == 0 => Ok(WaitStatus::Lost),
            _ => Err(Malformed),
        }
    }

    fn event(&mut self) -> Decoded<Event> {
        let rank = self.option(Self::u32)?;
        let pid = self.option(Self::pid)?;
        let time_ns = self.u64()?;
        let kind = match self.u8()? {
            0 => EventKind::Started,
            1 => EventKind::Exec,
            2 => EventKind::SpawnFailed(self.index(&Stage::ALL)?, self.i32()?),
            3 => EventKind::Exited(self.status()?, self.u32()?),
            4 => EventKind::Signal(self.signal()?),
            5 => EventKind::Stopping(self.index(&Reason::ALL)?),
            6 => EventKind::Swept(self.u32()?),
            7 => EventKind::GuardLost,
            8 => EventKind::Ended,
            _ => return Err(Malformed),
        };
        Ok(Event { rank, pid, time_ns, kind })
    }

    fn outcome(&mut self) -> Decoded<Outcome> {
        Ok(Outcome {
            job: self.text()?,
            host: self.text()?,
            status: self.u8()?,
            reason: self.index(&Reason::ALL)?,
            signal: self.option(Self::signal)?,
            first_failure: self.option(Self::u32)?,
            spawn_failure: self.option(|d| {
                Ok(SpawnFailure { rank: d.u32()?, stage: d.index(&Stage::ALL)?, errno: d.i32()? })
            })?,
            ranks: self.list(|d| {
                Ok(RankOutcome {
                    rank: d.u32()?,
                    local_rank: d.u32()?,
                    pid: d.option(Self::pid)?,
                    status: d.option(Self::status)?,
                    reason: d.index(&RankReason::ALL)?,
                    started_ns: d.option(Self::u64)?,
                    ended_ns: d.option(Self::u64)?,
                    order: d.option(Self::u32)?,
                })
            })?,
            swept: self.u32()?,
            unkillable: self.list(Self::pid)?,
            guard_lost: self.bool()?,
            started: f64::from_bits(self.u64()?),
            ended: f64::from_bits(self.u64()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{Frame, Inbox, MAX_PAYLOAD, Malformed, Reply, Request};
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
