//! Process ids that can be signalled without harm.

use std::fmt;

/// A process id above 1: `kill` reads 0, 1 and negative numbers as groups, `init`, or everybody.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Pid(i32);

impl Pid {
    /// `None` for 1, 0 and negative numbers.
    pub fn new(raw: i32) -> Option<Self> {
        (raw > 1).then_some(Self(raw))
    }

    /// The number.
    pub fn get(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Pid;

    #[test]
    fn no_pid_means_a_group_or_init() {
        for raw in [1, 0, -1, i32::MIN] {
            assert_eq!(Pid::new(raw), None);
        }
        assert_eq!(Pid::new(2).map(Pid::get), Some(2));
    }
}
