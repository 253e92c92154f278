//! The tree of processes, from `/proc`.

use std::fs;
use std::io::{Read as _, Seek as _};

use crate::pid::Pid;

/// A field of `/proc/<pid>/stat` by its number in proc(5), from 3 on: the name before may hold blanks and parentheses.
fn stat_field(stat: &[u8], number: usize) -> Option<&str> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace().nth(number - 3)
}

fn stat(pid: Pid) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/stat")).ok()
}

/// The parent of a process.
pub(super) fn parent(pid: Pid) -> Option<i32> {
    stat_field(&stat(pid)?, 4)?.parse().ok()
}

/// Whether there is something to signal. A process whose first thread has ended is called a zombie while others live.
fn is_alive(pid: Pid) -> bool {
    let Some(stat) = stat(pid) else { return false };
    let threads = stat_field(&stat, 20).and_then(|count| count.parse().ok()).unwrap_or(0);
    !matches!(stat_field(&stat, 3), None | Some("Z" | "X")) || threads > 1
}

/// When a process was made, in the kernel's ticks since boot.
pub(crate) fn start_ticks(pid: Pid) -> Option<u64> {
    stat_field(&stat(pid)?, 22)?.parse().ok()
}

/// Children of a process: of each of its threads.
fn children(pid: Pid) -> Option<Vec<Pid>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread that ends meanwhile hands its children to another.
        let Ok(list) = fs::read_to_string(task.path().join("children")) else { continue };
        found.extend(list.split_ascii_whitespace().filter_map(|pid| Pid::new(pid.parse().ok()?)));
    }
    Some(found)
}

/// The children of this process, which has one thread, read again and again.
pub(crate) struct OwnChildren(fs::File);

impl OwnChildren {
    /// `None` where the kernel keeps no list.
    pub(crate) fn open() -> Option<Self> {
        fs::File::open("/proc/thread-self/children").ok().map(Self)
    }

    /// Calls `f` for each.
    pub(crate) fn each(&self, mut f: impl FnMut(Pid)) {
        let mut list = String::new();
        let mut file = &self.0;
        if file.rewind().is_ok() && file.read_to_string(&mut list).is_ok() {
            list.split_ascii_whitespace().filter_map(|pid| Pid::new(pid.parse().ok()?)).for_each(&mut f);
        }
    }
}

/// Every process with its parent, where the kernel keeps no list of children.
fn scan() -> Vec<(Pid, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let pid = Pid::new(entry.ok()?.file_name().to_str()?.parse().ok()?)?;
            Some((pid, parent(pid)?))
        })
        .collect()
}

/// Living descendants of `root`, each with its parent, parents first.
pub(crate) fn descendants(root: Pid) -> Vec<(Pid, Pid)> {
    let listed = OwnChildren::open().is_some();
    let table = if listed { Vec::new() } else { scan() };
    let children_of = |pid: Pid| {
        if listed {
            children(pid).unwrap_or_default()
        } else {
            table.iter().filter(|(_, parent)| *parent == pid.get()).map(|(child, _)| *child).collect()
        }
    };
    let mut found: Vec<(Pid, Pid)> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children_of(parent) {
            if child == root || found.iter().any(|(pid, _)| *pid == child) {
                continue;
            }
            if is_alive(child) {
                found.push((child, parent));
            }
            parents.push(child);
        }
    }
    found
}
