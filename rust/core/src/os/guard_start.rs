//! Starting the guard from any process, however large and whatever its threads and signal handlers do.
//!
//! Two nested `clone(CLONE_VM | CLONE_VFORK)`: the first child has exit signal 0, so it raises no SIGCHLD and no
//! `waitpid(-1)` of the host sees it; it makes the guard and ends, so the guard is nobody's child here. No page table is
//! copied. Each child runs on a stack of its own: sharing the caller's would overwrite its return address.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use libc::{c_char, c_int, c_void};
use rustix::io::Errno;

use super::signals::Masked;
use super::spawn::{c_environ, c_path, close_on_exec_from, pointers};
use crate::wire::start_failure;

const STACK: usize = 64 * 1024;

/// What the children read; the parent sleeps until both are done with it.
struct Order {
    file: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    fds: *const RawFd,
    fd_count: c_int,
    stack_top: *mut c_void,
}

/// Executes `file` as the guard, with `fds` as descriptors 3, 4, ... The first is the socket, over which a failed exec
/// is told: through memory it could not be, where CLONE_VM is emulated by a fork (valgrind).
pub(crate) fn start_guard(file: &Path, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let first_free = 3 + c_int::try_from(fds.len()).map_err(|_| Errno::MFILE)?;
    // Above every target, so that placing one cannot overwrite another.
    let raised: Result<Vec<_>, _> =
        fds.iter().map(|fd| super::duplicate_above(fd.as_fd(), first_free)).collect();
    let raised = raised?;
    let numbers: Vec<RawFd> = raised.iter().map(AsRawFd::as_raw_fd).collect();
    let file = c_path(file)?;
    let argv = pointers([c"nl-guard", c"__guard"]);
    let environ = c_environ();
    let envp = pointers(environ.iter().map(CString::as_c_str).map(|s: &CStr| s));
    let mut outer_stack = vec![0u8; STACK];
    let mut inner_stack = vec![0u8; STACK];
    let order = Order {
        file: file.as_ptr(),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        fds: numbers.as_ptr(),
        fd_count: first_free - 3,
        stack_top: top(&mut inner_stack),
    };
    // The children inherit the mask: no handler of the host runs on their stacks, and the guard starts deaf.
    let masked = Masked::all();
    // SAFETY: the stack is ours and large enough for what `outer` does; CLONE_VFORK keeps this thread, and with it
    // `order` and both stacks, until the child has ended. The child makes system calls only.
    let pid = unsafe {
        libc::clone(
            outer,
            top(&mut outer_stack),
            libc::CLONE_VM | libc::CLONE_VFORK,
            (&raw const order).cast_mut().cast(),
        )
    };
    let error = std::io::Error::last_os_error();
    if pid < 0 {
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
    }
    let mut status = 0;
    loop {
        // SAFETY: waits for exactly the child made above; __WALL is what sees a child with exit signal 0.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } >= 0 {
            break;
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            // Another thread of the host waits with __WALL; the socket tells what came of it.
            status = 0;
            break;
        }
    }
    drop(masked);
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

fn top(stack: &mut [u8]) -> *mut c_void {
    let end = stack.as_mut_ptr_range().end;
    // Every ABI we know wants at most 16.
    end.wrapping_sub(end.addr() % 16).cast()
}

/// The first child: makes the guard and ends.
extern "C" fn outer(order: *mut c_void) -> c_int {
    // SAFETY: `order` is the `Order` of the parent, which sleeps; see `start_guard`. The inner child is waited for by
    // CLONE_VFORK in the same way. _exit, since nothing of the parent may run twice.
    unsafe {
        let stack = (*order.cast::<Order>()).stack_top;
        let pid = libc::clone(inner, stack, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, order);
        libc::_exit(if pid < 0 { *libc::__errno_location() } else { 0 })
    }
}

/// The guard, until exec.
extern "C" fn inner(order: *mut c_void) -> c_int {
    // SAFETY: as `outer`. Only system calls; the pointers are to memory that the parent keeps.
    unsafe {
        let order = &*order.cast::<Order>();
        close_on_exec_from(3);
        for index in 0..order.fd_count {
            let from = *order.fds.offset(index as isize);
            if libc::dup2(from, 3 + index) < 0 {
                libc::_exit(1);
            }
        }
        libc::execve(order.file, order.argv, order.envp);
        let message = start_failure(*libc::__errno_location());
        libc::write(3, message.as_ptr().cast(), message.len());
        libc::_exit(1)
    }
}
