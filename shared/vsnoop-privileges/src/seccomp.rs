//! Filters of system calls (seccomp(2)).

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter, sock_filter,
};

use super::error::PrivilegeError;
use super::refusals::Refusal;

/// System calls of the x32 ABI have this bit (arch/x86/include/uapi/asm/unistd.h).
#[cfg(target_arch = "x86_64")]
const OTHER_ABI: u32 = 0x4000_0000;
/// No system call has such a number.
#[cfg(not(target_arch = "x86_64"))]
const OTHER_ABI: u32 = u32::MAX;

type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

/// From now on these calls fail with EPERM, calls that do not exist with ENOSYS. Sets no_new_privs.
/// A call of another architecture ends the process.
///
/// A thread that was started by one with the same filters has them already. Processes that start
/// each other again and again would else add to them each time, until the kernel takes no more.
pub fn refuse(refused: &[Refusal]) -> Result<(), PrivilegeError> {
    let mut rules = rules(refused)?;
    let mark = digest(&compile(&rules)?);
    if has_mark(mark) {
        return Ok(());
    }
    rules.insert(libc::SYS_getppid, vec![rule(0, SeccompCmpOp::Eq, mark)?]);
    apply_filter(&unknown_calls())?;
    Ok(apply_filter(&compile(&rules)?)?)
}

fn compile(rules: &Rules) -> Result<BpfProgram, PrivilegeError> {
    let filter = SeccompFilter::new(
        rules.clone(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(filter.try_into()?)
}

/// A call without rules is refused in every form, one with rules if any of them is true.
fn rules(refused: &[Refusal]) -> Result<Rules, PrivilegeError> {
    let mut rules = Rules::new();
    for refusal in refused {
        let (call, more) = match *refusal {
            Refusal::Call(_) => continue,
            Refusal::If { call, argument, value } => {
                (call, vec![int_rule(argument, SeccompCmpOp::Eq, value)?])
            }
            Refusal::Unless { call, argument, value } => {
                (call, vec![int_rule(argument, SeccompCmpOp::Ne, value)?])
            }
            Refusal::IfAnyBit { call, argument, bits } => {
                let set = (0..u32::BITS).map(|bit| 1 << bit).filter(|bit| bits & bit != 0);
                let is_set =
                    |bit: u32| rule(argument, SeccompCmpOp::MaskedEq(bit.into()), bit.into());
                (call, set.map(is_set).collect::<Result<_, _>>()?)
            }
        };
        rules.entry(call).or_default().extend(more);
    }
    for refusal in refused {
        if let Refusal::Call(call) = refusal {
            rules.insert(*call, Vec::new());
        }
    }
    Ok(rules)
}

fn rule(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompRule, PrivilegeError> {
    condition(argument, SeccompCmpArgLen::Qword, is, value)
}

/// The kernel takes the lower half of the argument, too.
fn int_rule(argument: u8, is: SeccompCmpOp, value: u32) -> Result<SeccompRule, PrivilegeError> {
    condition(argument, SeccompCmpArgLen::Dword, is, value.into())
}

fn condition(
    argument: u8,
    length: SeccompCmpArgLen,
    is: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, PrivilegeError> {
    Ok(SeccompRule::new(vec![SeccompCondition::new(argument, length, is, value)?])?)
}

/// Digest of the instructions of a filter (FNV-1a).
fn digest(filter: &[sock_filter]) -> u64 {
    let words = filter.iter().map(|it| {
        u64::from(it.code) << 48 | u64::from(it.jt) << 40 | u64::from(it.jf) << 32 | u64::from(it.k)
    });
    words.flat_map(u64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Does the filter with this digest apply? It refuses `getppid` with the digest as an argument,
/// which the kernel ignores otherwise.
fn has_mark(mark: u64) -> bool {
    // SAFETY: takes no pointers.
    let answer = unsafe { libc::syscall(libc::SYS_getppid, mark) };
    answer < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Calls that do not exist (ENOSYS): `clone3`, whose flags stand in memory where no filter sees
/// them, so that libc calls `clone`; and all of x32, which has other numbers.
fn unknown_calls() -> [sock_filter; 5] {
    let code = |parts: u32| parts as u16;
    let load_number = code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
    let at_least = code(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K);
    let equal = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let answer = code(libc::BPF_RET | libc::BPF_K);
    let statement = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    [
        // The number stands first in struct seccomp_data.
        statement(load_number, 0, 0, 0),
        statement(at_least, 2, 0, OTHER_ABI),
        statement(equal, 1, 0, libc::SYS_clone3 as u32),
        statement(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        statement(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ]
}
