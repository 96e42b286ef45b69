//! Remedies in messages: commands between backticks.
//!
//! They are written for a port in the reader's namespace. For a port in another namespace
//! [`in_netns`] completes them, so that they work when they are pasted.

/// Commands that act on the whole host, whatever the namespace.
const OF_THE_HOST: [&str; 4] = ["vsnoop off", "vsnoop reload", "vsnoop link", "vsnoop --netns"];
/// Programs that act on the namespace that they run in.
const RUN_INSIDE: [&str; 3] = ["tc", "ip", "bpftool"];

/// `netns`: as `--netns` takes it; `None` is the namespace of the command.
pub fn in_netns(text: &str, netns: Option<&str>) -> String {
    let Some(netns) = netns else { return text.to_owned() };
    let mut parts = text.split('`');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for (number, part) in parts.enumerate() {
        out.push('`');
        // Every other part is between two backticks.
        out.push_str(&if number % 2 == 0 {
            complete_command(part, netns)
        } else {
            part.to_owned()
        });
    }
    out
}

fn complete_command(command: &str, netns: &str) -> String {
    if OF_THE_HOST.iter().any(|words| command.starts_with(words)) {
        return command.to_owned();
    }
    match command.split_once(' ') {
        Some(("vsnoop", rest)) => format!("vsnoop --netns {netns} {rest}"),
        // `ip netns` itself needs no namespace.
        Some(("ip", "netns")) => command.to_owned(),
        Some((program, _)) if RUN_INSIDE.contains(&program) => {
            format!("{} {command}", inside_namespace(netns))
        }
        _ => command.to_owned(),
    }
}

fn inside_namespace(netns: &str) -> String {
    if netns.contains('/') {
        format!("nsenter --net={netns}")
    } else if netns.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("nsenter --net=/proc/{netns}/ns/net")
    } else {
        format!("ip netns exec {netns}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_completed_and_other_words_are_not() {
        let text = "port a is `x`; `vsnoop detach a` first, then `tc qdisc del dev a root`";
        assert_eq!(in_netns(text, None), text);
        assert_eq!(
            in_netns(text, Some("blue")),
            "port a is `x`; `vsnoop --netns blue detach a` first, then `ip netns exec blue tc \
             qdisc del dev a root`"
        );
        assert_eq!(in_netns("`tc x`", Some("17")), "`nsenter --net=/proc/17/ns/net tc x`");
        assert_eq!(in_netns("`ip link`", Some("/run/n")), "`nsenter --net=/run/n ip link`");
    }

    #[test]
    fn the_panic_switch_and_a_reload_are_for_the_whole_host() {
        let of_host =
            ["`vsnoop off --all`", "`vsnoop reload`", "`vsnoop link up FILE`", "`ip netns`"];
        for text in of_host {
            assert_eq!(in_netns(text, Some("blue")), text);
        }
    }
}
