//! System calls behind safe functions and types of our own: the only unsafe code of the crate.

mod fds;
mod guard_start;
mod poll;
mod process;
mod procfs;
mod signals;
mod socket;
mod spawn;

pub(crate) use fds::{
    affinity_count, duplicate, duplicate_above, leave_streams, memfd, open_null, pipe, random_hex, read_all,
    release, reserve_port, take, take_socket, wait_release,
};
pub(crate) use guard_start::start_guard;
pub(crate) use poll::{Poller, Token, poll_ready};
pub(crate) use process::{
    ForkSide, Reap, descriptor_limit, exit_now, fork, hostname, kill_child, monotonic, name_process,
    now_ticks, open_own_pidfd, open_pidfd, own_pid, peek_ended_child, process_limit, reap_child, reap_pidfd,
    reset_sigchld, send_signal, set_death_signal, set_subreaper, signal_child_of, start_session, take_stop,
    unix_time, wait_for_child,
};
pub(crate) use procfs::{OwnChildren, descendants, start_ticks};
pub(crate) use signals::{Masked, SignalInfo, SignalReader, is_ignored};
pub(crate) use socket::{pair, receive, send, send_all, send_with_fds, shut_down};
pub(crate) use spawn::{Image, Spawned, search, spawn};

pub mod front;
pub mod host;
