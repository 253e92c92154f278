//! What people see. A stream that nobody reads is no reason to fail.

use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use nativelaunch_core::Error;
use nativelaunch_core::front::is_writable;

/// Text for standard output.
pub(crate) fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// How long a full pipe may keep us. Nobody reads it after that, and a front that waits on would be deaf.
const PATIENCE: Duration = Duration::from_secs(2);

/// Linux's PIPE_BUF: so much goes into a pipe that poll(2) calls writable, at once and in one piece (pipe(7)).
const PIECE: usize = 4096;

/// A message on standard error: every line with our name.
pub(crate) fn say(text: &str) {
    tell(&mut std::io::stderr(), text, PATIENCE);
}

/// A message while the job runs and signals are to be heard: not told if nobody has read what is there.
pub(crate) fn mention(text: &str) {
    tell(&mut std::io::stderr(), text, Duration::ZERO);
}

/// The patience is for each piece anew: a reader that takes its time is one.
fn tell(stream: &mut (impl Write + AsFd), text: &str, patience: Duration) {
    for piece in pieces(text) {
        if !is_writable(&*stream, patience) || stream.write_all(&piece).is_err() {
            return;
        }
    }
}

/// Our lines, as many in one piece as fit: the ranks write to the same terminal.
fn pieces(text: &str) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for line in text.lines() {
        let line = format!("nativelaunch: {line}\n");
        match pieces.last_mut() {
            Some(last) if last.len() + line.len() <= PIECE => last.extend(line.bytes()),
            _ => pieces.extend(line.as_bytes().chunks(PIECE).map(<[u8]>::to_vec)),
        }
    }
    pieces
}

/// Tells an error; its exit status.
pub(crate) fn fail(error: &Error) -> ExitCode {
    say(&error.to_string());
    ExitCode::from(error.exit_status())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    /// Larger than what a socket or a pipe holds.
    fn long() -> String {
        "a line of some length\n".repeat(100_000)
    }

    /// Fills a stream until nobody can write to it.
    fn fill(stream: &mut UnixStream) {
        while is_writable(&*stream, Duration::ZERO) {
            stream.write_all(&[b'.'; PIECE]).unwrap();
        }
    }

    #[test]
    fn a_message_comes_in_pieces_that_a_pipe_takes_at_once() {
        assert_eq!(pieces("one\ntwo"), [b"nativelaunch: one\nnativelaunch: two\n"]);
        let whole: Vec<u8> =
            long().lines().flat_map(|line| format!("nativelaunch: {line}\n").into_bytes()).collect();
        let found = pieces(&long());
        assert!(found.iter().all(|piece| piece.len() <= PIECE && piece.ends_with(b"\n")));
        assert_eq!(found.concat(), whole);
        let line = "x".repeat(3 * PIECE);
        assert!(pieces(&line).iter().all(|piece| piece.len() <= PIECE));
        assert_eq!(pieces(&line).concat(), format!("nativelaunch: {line}\n").into_bytes());
    }

    #[test]
    fn nothing_to_say_waits_for_nobody() {
        let (_reader, mut writer) = UnixStream::pair().unwrap();
        fill(&mut writer);
        let begin = Instant::now();
        tell(&mut writer, "", Duration::from_secs(30));
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_long_report_that_nobody_reads_is_given_up() {
        let (mut reader, mut writer) = UnixStream::pair().unwrap();
        // On a thread: a write that blocks would do so for ever.
        let (done, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            tell(&mut writer, &long(), Duration::from_millis(50));
            done.send(()).unwrap();
        });
        told.recv_timeout(Duration::from_secs(30)).expect("a report that nobody reads holds us");
        let mut found = String::new();
        reader.read_to_string(&mut found).unwrap();
        assert!(found.ends_with("nativelaunch: a line of some length\n"), "the last line is whole");
    }

    #[test]
    fn a_slow_reader_gets_all() {
        let (mut reader, mut writer) = UnixStream::pair().unwrap();
        let writing = std::thread::spawn(move || tell(&mut writer, &long(), Duration::from_secs(30)));
        let mut found = String::new();
        reader.read_to_string(&mut found).unwrap();
        writing.join().unwrap();
        assert_eq!(found.lines().count(), 100_000);
    }
}
