//! Situations that are easily forgotten, by name.

use super::World;
use super::cases::{Case, Habit, Happening, OnTerm, Program, Start};
use super::kernel::Ms;
use crate::error::Stage;
use crate::job::{Action, Input, JobState};
use crate::outcome::{RankReason, Reason, WaitStatus};
use crate::pid::Pid;
use crate::policy::Policy;
use crate::signal::Signal;

const CRASH: WaitStatus = WaitStatus::Signaled(Signal::QUIT);
const QUIET: Habit = Habit { on_term: OnTerm::Dies, ends: None, frozen: false, slips: 0, stuck: false };
const DEAF: Habit = Habit { on_term: OnTerm::Ignores, ..QUIET };

fn program(habit: Habit) -> Program {
    Program { start: Start::Runs(1), habit, children: Vec::new() }
}

fn exits(after: Ms, status: u8) -> Program {
    program(Habit { ends: Some((after, WaitStatus::Exited(status))), ..QUIET })
}

fn parent(child: Habit) -> Program {
    Program { children: vec![(0, child)], ..exits(100, 0) }
}

fn term(at: Ms) -> (Ms, Happening) {
    (at, Happening::Outside { signal: Signal::TERM, group: false, word: Some(0) })
}

fn ctrl_c(at: Ms, word: Option<Ms>) -> (Ms, Happening) {
    (at, Happening::Outside { signal: Signal::INT, group: true, word })
}

fn play_slowly(lag: Ms, programs: Vec<Program>, happenings: Vec<(Ms, Happening)>) -> World {
    let case = Case { graces: (30_000, 10_000, 2_000), programs, happenings, lags: vec![lag] };
    World::new(case).play().unwrap_or_else(|wrong| panic!("{wrong}"))
}

fn play(programs: Vec<Program>, happenings: Vec<(Ms, Happening)>) -> World {
    play_slowly(0, programs, happenings)
}

impl World {
    fn reasons(&self) -> Vec<RankReason> {
        self.job.ranks().iter().map(|rank| rank.reason).collect()
    }

    fn got(&self, slot: usize) -> &[(Ms, Signal)] {
        &self.kernel.workers[slot].got
    }
}

#[test]
fn a_stop_while_starting_starts_no_further_rank() {
    let slow = Program { start: Start::Runs(500), ..program(QUIET) };
    let world = play_slowly(10, vec![slow.clone(), slow.clone(), slow.clone(), slow], vec![term(25)]);
    assert_eq!(world.job.status(), 143);
    assert_eq!(world.reasons()[1..], [RankReason::Stopped, RankReason::NotStarted, RankReason::NotStarted]);
    assert_eq!(world.got(0), [(520, Signal::TERM)], "when the program is there to see it");
}

#[test]
fn a_failed_start_ends_those_that_run() {
    let exec = |errno| Start::ExecFails(5, Stage::Exec, errno);
    for (start, status) in [
        (exec(libc::ENOENT), 127),
        (exec(libc::EACCES), 126),
        (exec(libc::ENOMEM), 1),
        (Start::ExecFails(5, Stage::Chdir, libc::ENOENT), 1),
        (Start::ForkFails(libc::EAGAIN), 1),
    ] {
        let failing = Program { start, ..program(QUIET) };
        let world = play(vec![program(QUIET), program(QUIET), failing, program(QUIET)], vec![]);
        assert_eq!((world.job.status(), world.job.first_failure()), (status, Some(super::rank(2))));
        assert_eq!(world.job.spawn_failure().unwrap().rank, super::rank(2));
        assert_eq!(world.reasons()[..3], [RankReason::Stopped, RankReason::Stopped, RankReason::NotStarted]);
        assert!(world.kernel.now < 10, "nobody waits for a grace");
    }
}

#[test]
fn of_several_deaths_in_one_batch_the_first_is_the_cause() {
    let world = play_slowly(20, vec![exits(140, 7), exits(119, 9), exits(101, 0)], vec![]);
    assert_eq!(world.job.status(), 9);
    assert_eq!(world.reasons(), [RankReason::Stopped, RankReason::Failed, RankReason::Stopped]);
    let orders: Vec<_> = world.job.ranks().iter().map(|rank| rank.order.unwrap()).collect();
    assert_eq!(orders, [1, 0, 2]);
}

#[test]
fn a_death_that_crossed_with_the_stop_is_a_consequence() {
    let crashes = program(Habit { ends: Some((100, CRASH)), ..QUIET });
    let world = play_slowly(20, vec![crashes], vec![term(110)]);
    assert_eq!(world.got(0), [], "it was dead already");
    assert_eq!((world.job.status(), world.job.reason()), (143, Reason::Signal));
    assert_eq!(world.reasons(), [RankReason::Stopped]);
}

#[test]
fn a_rank_chooses_the_status_of_a_stop_by_signal() {
    let requeue = program(Habit { on_term: OnTerm::Exits(75, 100), ..QUIET });
    let fine = program(Habit { on_term: OnTerm::Exits(0, 50), ..QUIET });
    assert_eq!(play(vec![fine.clone(), requeue], vec![term(10)]).job.status(), 75);
    assert_eq!(play(vec![fine.clone(), fine], vec![term(10)]).job.status(), 143);
}

#[test]
fn the_client_chooses_the_status_of_its_stop() {
    for (reason, grace, status) in
        [(Reason::Timeout, 5000, 124), (Reason::Stopped, 5000, 143), (Reason::Stopped, 0, 137)]
    {
        let world = play(vec![program(DEAF)], vec![(10, Happening::Stop(reason, grace))]);
        assert_eq!((world.job.status(), world.job.reason()), (status, reason));
        assert_eq!(world.kernel.now, 10 + grace);
    }
}

#[test]
fn ctrl_c_that_kills_a_worker_before_the_word_of_it_is_a_stop() {
    let world = play(vec![program(QUIET), program(DEAF)], vec![ctrl_c(100, Some(60)), term(340), term(351)]);
    assert_eq!((world.job.status(), world.job.signal()), (130, Some(Signal::INT)));
    assert_eq!(world.got(0), [(100, Signal::INT)]);
    assert_eq!(world.got(1)[..2], [(100, Signal::INT), (351, Signal::KILL)], "its word is no second signal");
}

#[test]
fn a_crash_after_a_ctrl_c_that_nobody_heeds_is_a_crash() {
    let crashes = Habit { ends: Some((900, CRASH)), ..DEAF };
    let world = play(vec![program(crashes), program(QUIET)], vec![ctrl_c(500, None)]);
    assert_eq!((world.job.status(), world.job.first_failure()), (130, None), "rank 1 died of the Ctrl-C");
    let world = play(vec![program(crashes), program(DEAF)], vec![ctrl_c(500, None)]);
    assert_eq!(
        (world.job.status(), world.job.first_failure()),
        (131, Some(10)),
        "the model numbers ranks from 10"
    );
}

#[test]
fn ctrl_c_reaches_a_rank_made_just_after_it() {
    let slow = || Program { start: Start::Runs(30), ..program(QUIET) };
    let world = play_slowly(10, vec![program(DEAF), slow(), slow()], vec![ctrl_c(15, Some(20))]);
    assert_eq!((world.job.status(), world.reasons()[2]), (130, RankReason::Stopped));
    assert_eq!(world.got(0)[0], (15, Signal::INT));
    assert_eq!(world.got(2), [(60, Signal::INT)]);
}

#[test]
fn a_stop_after_ctrl_c_leaves_the_clean_up_alone() {
    let busy = program(Habit { on_term: OnTerm::Exits(0, 3000), ..QUIET });
    let stop = (200, Happening::Stop(Reason::Stopped, 30_000));
    let world = play(vec![busy], vec![ctrl_c(100, None), stop]);
    assert_eq!(world.got(0), [(100, Signal::INT)]);
    assert_eq!(world.kernel.now, 3100);
}

#[test]
fn a_second_signal_is_at_once_and_a_copy_is_not() {
    assert_eq!(play(vec![program(DEAF)], vec![term(100), term(350)]).kernel.now, 350);
    assert_eq!(play(vec![program(DEAF)], vec![term(100), term(349)]).kernel.now, 30_100);
    let interrupt = (400, Happening::Outside { signal: Signal::INT, group: false, word: Some(0) });
    let world = play(vec![program(DEAF)], vec![term(100), interrupt]);
    assert_eq!((world.kernel.now, world.job.status()), (400, 143));
}

#[test]
fn a_user_signal_is_passed_on_once_and_after_the_exec() {
    let usr1 = |at, group| (at, Happening::Outside { signal: Signal::USR1, group, word: Some(0) });
    let slow = Program { start: Start::Runs(20), ..program(QUIET) };
    let world = play(vec![program(QUIET), slow], vec![usr1(10, false), usr1(30, true)]);
    assert_eq!(world.got(0)[..2], [(10, Signal::USR1), (30, Signal::USR1)]);
    assert_eq!(world.got(1)[..2], [(20, Signal::USR1), (30, Signal::USR1)]);
}

#[test]
fn the_death_of_the_client_shortens_a_grace() {
    let world = play(vec![program(DEAF), parent(DEAF)], vec![term(50), (10_000, Happening::ClientDied)]);
    assert_eq!((world.job.status(), world.kernel.now), (143, 10_500));
}

#[test]
fn a_suspended_job_whose_client_is_gone_ends() {
    let stop = |slot| (100, Happening::Stranger(slot, Signal::STOP));
    let world =
        play(vec![program(QUIET), program(QUIET)], vec![stop(0), stop(1), (5000, Happening::ClientDied)]);
    let term = [(100, Signal::STOP), (5000, Signal::TERM), (5000, Signal::CONT)];
    assert_eq!((world.got(0), world.got(1), world.kernel.now), (&term[..], &term[..], 5000));
}

#[test]
fn a_lost_guard_is_told_and_ends_nothing() {
    let world = play(vec![exits(5000, 0)], vec![(100, Happening::GuardDied)]);
    assert!(world.job.guard_lost());
    assert_eq!((world.job.status(), world.kernel.now), (0, 5001));
}

#[test]
fn what_is_left_after_a_normal_end_is_asked_and_then_killed() {
    assert_eq!(play(vec![parent(QUIET)], vec![]).kernel.now, 101, "the end of the last is the end");
    assert_eq!(play(vec![parent(DEAF)], vec![]).kernel.now, 2101);
    assert_eq!(play(vec![parent(Habit { slips: 3, ..DEAF })], vec![]).kernel.now, 2101 + 2 * 20);
    let stopped = play(vec![parent(DEAF)], vec![(200, Happening::Stop(Reason::Stopped, 0))]);
    assert_eq!((stopped.job.status(), stopped.kernel.now), (0, 200), "their status stands");
}

#[test]
fn what_outlives_sigkill_is_left_and_nothing_else() {
    let stuck = Program {
        children: vec![(0, Habit { slips: 2, ..DEAF })],
        ..program(Habit { stuck: true, ..QUIET })
    };
    let world = play(vec![stuck, exits(100, 3)], vec![]);
    assert_eq!(world.reasons(), [RankReason::Lost, RankReason::Failed]);
    assert!(world.job.gave_up());
    assert_eq!((world.job.status(), world.kernel.living().count(), world.kernel.now), (3, 1, 15_101));
}

#[test]
fn a_death_before_the_exec_is_known_needs_no_confirmation() {
    let mut job = JobState::new(Policy::default(), [(0, 0)]);
    let mut actions = Vec::new();
    let now = std::time::Duration::ZERO;
    job.handle(now, Input::Forked(0, Pid::new(4711).unwrap()), &mut actions);
    job.handle(now, Input::ClientLeft, &mut actions);
    job.handle(now, Input::Reaped(0, WaitStatus::Signaled(Signal::KILL)), &mut actions);
    assert!(!actions.iter().any(|action| matches!(action, Action::Signal(..))), "{actions:?}");
    job.handle(now, Input::NoDescendants(0), &mut actions);
    assert_eq!((job.status(), actions.last()), (143, Some(&Action::Finish)));
}
