//! Values as bytes, little-endian: what the plan and the messages are made of.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Stage};
use crate::event::{Event, EventKind};
use crate::outcome::{Outcome, RankOutcome, RankReason, Reason, SpawnFailure, WaitStatus};
use crate::pid::Pid;
use crate::signal::Signal;

/// The other side sent something else than agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

impl From<Malformed> for Error {
    fn from(_: Malformed) -> Self {
        Self::new(ErrorKind::Protocol, "malformed message between client and keeper")
    }
}

type Decoded<T> = Result<T, Malformed>;

/// Appends values to a buffer, little-endian.
#[derive(Default)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
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
    pub(crate) fn index<T: PartialEq>(&mut self, table: &[T], value: &T) {
        let index = table.iter().position(|entry| entry == value).and_then(|index| u8::try_from(index).ok());
        self.u8(index.unwrap_or(u8::MAX));
    }

    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)]
    pub(crate) fn signal(&mut self, signal: Signal) {
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

    pub(crate) fn event(&mut self, event: &Event) {
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

    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
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

    pub(crate) fn index<T: Copy>(&mut self, table: &[T]) -> Decoded<T> {
        table.get(usize::from(self.u8()?)).copied().ok_or(Malformed)
    }

    pub(crate) fn signal(&mut self) -> Decoded<Signal> {
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

    pub(crate) fn event(&mut self) -> Decoded<Event> {
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

    pub(crate) fn outcome(&mut self) -> Decoded<Outcome> {
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
