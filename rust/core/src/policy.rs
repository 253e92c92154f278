//! How long the polite end may take.

use std::time::Duration;

use crate::error::Error;

/// After the client died: time from SIGTERM to SIGKILL.
pub const CLIENT_GONE_GRACE: Duration = Duration::from_millis(500);
/// A terminating signal this long after the first is a second one and kills at once; before, it is a copy (Slurm sends
/// two within 20 ms, `timeout` signals its child and then the group).
pub const SECOND_SIGNAL_AFTER: Duration = Duration::from_millis(250);
/// A worker that ends this soon after a terminating signal to the whole group is taken to have ended because of it.
pub const GROUP_SIGNAL_WINDOW: Duration = Duration::from_secs(5);
/// Processes that outlive SIGKILL this long (uninterruptible sleep) are reported and left.
pub const UNKILLABLE_AFTER: Duration = Duration::from_secs(5);
/// Between two rounds of SIGKILL over descendants that keep forking.
pub const KILL_ROUND: Duration = Duration::from_millis(20);
/// What the sweep may take beyond the deadline of the stop before it kills.
pub const SWEEP_SLACK: Duration = Duration::from_millis(500);

/// The graces of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// From an outside signal, or a stop asked by the client, to SIGKILL.
    pub grace: Duration,
    /// From the SIGTERM sent because another rank failed to SIGKILL.
    pub peer_grace: Duration,
    /// From the SIGTERM to what the workers left behind to SIGKILL.
    pub sweep_grace: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(30),
            peer_grace: Duration::from_secs(10),
            sweep_grace: Duration::from_secs(2),
        }
    }
}

/// Ten years: beyond this a grace is a mistake, and sums with the clock stay far from overflow.
const LONGEST: f64 = 10.0 * 366.0 * 86_400.0;

/// A grace for `field`: absurdly long ones are refused.
pub(crate) fn check(field: &str, grace: Duration) -> Result<(), Error> {
    seconds(field, grace.as_secs_f64()).map(drop)
}

/// Seconds as given by a person, for the option or argument `field`. Negative, NaN and absurdly long are refused.
pub fn seconds(field: &str, value: f64) -> Result<Duration, Error> {
    if (0.0..=LONGEST).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err(Error::usage(format!("{field} must be a number of seconds of at least 0: {value}")))
    }
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn a_grace_is_a_finite_number_of_seconds() {
        assert_eq!(seconds("grace", 1.5).unwrap().as_millis(), 1500);
        assert!(seconds("grace", 0.0).unwrap().is_zero());
        for bad in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
            let error = seconds("grace", bad).unwrap_err();
            assert!(error.to_string().starts_with("grace must be"), "{error}");
        }
    }
}
