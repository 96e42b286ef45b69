//! A guest firewall that loses segments which its TCP never sees.
//!
//! The rule runs at the input hook, behind the virtual device: for the host such a segment was
//! delivered. It needs the image's `nft` (tests only).

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

const NFT: &str = "/bin/nft";

/// Replaces the rule; 0 removes it.
pub fn drop_percent(percent: u32) -> Result<()> {
    if percent > 100 {
        bail!("cannot drop {percent} % of the segments");
    }
    let mut script = String::from("add table inet lab\ndelete table inet lab\n");
    if percent > 0 {
        // Longer than headers alone: segments with payload.
        script += &format!(
            "table inet lab {{
                chain input {{
                    type filter hook input priority 0;
                    meta l4proto tcp meta length > 100 numgen random mod 100 < {percent} \
                        counter drop
                }}
            }}\n"
        );
    }
    let mut nft = Command::new(NFT)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {NFT}: was the image built with the firewall?"))?;
    if let Some(mut stdin) = nft.stdin.take() {
        stdin.write_all(script.as_bytes()).context("write to nft")?;
    }
    let output = nft.wait_with_output().context("wait for nft")?;
    if !output.status.success() {
        bail!("nft refused the rule: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Segments that the rule has dropped; 0 without a rule.
pub fn drops() -> u64 {
    let list = Command::new(NFT).args(["-j", "list", "table", "inet", "lab"]).output();
    let Ok(output) = list else { return 0 };
    let rules: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    // { "nftables": [ { "rule": { "expr": [ { "counter": { "packets": 1 } } ] } } ] }
    let items = rules["nftables"].as_array().into_iter().flatten();
    let expressions = items.filter_map(|item| item["rule"]["expr"].as_array()).flatten();
    expressions.filter_map(|expression| expression["counter"]["packets"].as_u64()).sum()
}
