//! Records are removed only if they are still due when they leave the table.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_bpf::types::{flow, flow_mode, seq};
use vsnoop_bpf::{AttachSpec, Port, Record};

use crate::priority::end_background;
use crate::sandbox::{PORT, TapHost};
use crate::surroundings::KEY;

pub fn trials() -> Vec<Trial> {
    trials![
        a_record_that_is_due_is_forgotten,
        a_record_that_becomes_busy_while_it_is_looked_at_is_put_back,
        a_record_in_reset_lives_from_its_reset,
        bytes_that_a_new_record_knows_nothing_of_end_in_reset,
        a_new_record_stays_when_the_vm_has_everything,
    ]
}

fn a_record_that_is_due_is_forgotten() -> Result<()> {
    with_table("due", |table| {
        table.insert_flow(&KEY, &record(1000, 1000))?;
        ensure!(table.delete_flow_if(&KEY, |_| true)?, "it was kept");
        ensure!(table.flow(&KEY)?.is_none(), "it is still there");
        ensure!(!table.delete_flow_if(&KEY, |_| true)?, "it was forgotten twice");
        Ok(())
    })
}

fn a_record_that_becomes_busy_while_it_is_looked_at_is_put_back() -> Result<()> {
    with_table("busy", |table| {
        table.insert_flow(&KEY, &record(1000, 1000))?;
        let busy = record(3000, 1000);
        let mut looks = 0;
        let forgotten = table.delete_flow_if(&KEY, |seen| {
            looks += 1;
            if looks == 1 {
                replace(table, &busy);
            }
            seen.next_seq.v == seen.vm_seq.v
        })?;
        ensure!(!forgotten && looks == 2, "forgotten: {forgotten}, looks: {looks}");
        let found = table.flow(&KEY)?.context("it is gone")?;
        ensure!(is_same(found, &busy), "it has changed: {found:?}");
        Ok(())
    })
}

fn a_record_in_reset_lives_from_its_reset() -> Result<()> {
    with_table("made", |table| {
        let silent = flow { last_ns: 1, ..record(3000, 1000) };
        table.insert_flow(&KEY, &silent)?;
        ensure!(table.mark_reset(&KEY, &silent, 77)?, "it was not marked");
        let found = table.flow(&KEY)?.context("it is gone")?;
        ensure!(u32::from(found.mode) == flow_mode::FLOW_RESET, "{found:?}");
        ensure!((found.last_ns, found.retired) == (77, 2000), "{found:?}");
        Ok(())
    })
}

fn bytes_that_a_new_record_knows_nothing_of_end_in_reset() -> Result<()> {
    with_table("clash", |table| {
        // Created by an ACK of the VM below the old NEXT_SEQ.
        let found = after_clash(table, &record(3000, 1000), &record(2000, 2000))?;
        ensure!(u32::from(found.mode) == flow_mode::FLOW_RESET, "mode {}", found.mode);
        ensure!(found.retired == 1000 && found.next_seq.v == 3000, "{found:?}");
        Ok(())
    })
}

fn a_new_record_stays_when_the_vm_has_everything() -> Result<()> {
    with_table("news", |table| {
        let new = record(3000, 3000);
        let found = after_clash(table, &record(3000, 1000), &new)?;
        ensure!(is_same(found, &new), "it has changed: {found:?}");
        Ok(())
    })
}

fn record(next_seq: u32, vm_seq: u32) -> flow {
    flow { next_seq: seq::new(next_seq), vm_seq: seq::new(vm_seq), ..Default::default() }
}

/// Equal except for the hash, which depends on the key.
fn is_same(found: flow, given: &flow) -> bool {
    flow { key_hash: given.key_hash, ..found }.as_bytes() == given.as_bytes()
}

/// The record in the table after `old` was taken out and found busy, and `new` was inserted
/// meanwhile.
fn after_clash(table: &Port, old: &flow, new: &flow) -> Result<flow> {
    table.insert_flow(&KEY, old)?;
    let mut looks = 0;
    let forgotten = table.delete_flow_if(&KEY, |_| {
        looks += 1;
        if looks == 2 {
            table.insert_flow(&KEY, new).expect("the old record is out of the table");
        }
        looks == 1
    })?;
    ensure!(!forgotten, "it was forgotten");
    table.flow(&KEY)?.context("nothing is on record")
}

fn replace(table: &Port, flow: &flow) {
    assert!(table.delete_flow_if(&KEY, |_| true).expect("delete"), "nothing was on record");
    table.insert_flow(&KEY, flow).expect("insert");
}

/// A port that no helper looks at, nor an engine that would start one.
fn with_table(role: &str, test: impl FnOnce(&Port) -> Result<()>) -> Result<()> {
    end_background()?;
    let host = TapHost::new(role)?;
    let index = host.netns.run(|| Ok(nix::net::if_::if_nametoindex(PORT)?))?;
    let spec = AttachSpec::new(index, PORT, host.netns.inode()?);
    let port = host.netns.run(|| Ok(Port::attach(&spec)?))?;
    let result = test(&port);
    port.detach()?;
    result
}
