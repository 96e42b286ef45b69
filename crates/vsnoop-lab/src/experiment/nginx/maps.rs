//! Maps of a ratio: round trip of the path by the VM's share of its core.

use vsnoop_testbed::vm::Share;

use crate::results::Group;
use crate::results::map::{Field, Map};
use crate::results::statistics::Ratio;

/// What a map is of: groups with the same label stand in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Of its files, without extension.
    pub name: String,
    pub title: String,
}

/// A map for each label, by size.
pub fn maps(
    groups: &[Group],
    label: impl Fn(&Group) -> Label,
    ratio: impl Fn(&Group) -> Option<Ratio>,
) -> Vec<Map> {
    let mut by_size: Vec<&Group> = groups.iter().collect();
    by_size.sort_by_key(|group| group.size_bytes);
    let labels = distinct(by_size.iter().map(|group| label(group)));
    let with = |wanted: Label| {
        let groups: Vec<_> = groups.iter().filter(|group| label(group) == wanted).collect();
        map(&groups, wanted, &ratio)
    };
    labels.into_iter().map(with).collect()
}

/// The first of each, in their order.
pub fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

fn map(groups: &[&Group], label: Label, ratio: &impl Fn(&Group) -> Option<Ratio>) -> Map {
    let mut rtts: Vec<f64> = groups.iter().map(|group| group.cell.path_rtt_ms).collect();
    rtts.sort_by(f64::total_cmp);
    rtts.dedup();
    let mut shares = distinct(groups.iter().filter_map(|group| group.cell.share));
    shares.sort_by_key(|share| match share {
        Share::Quota { percent } => *percent,
        _ => u32::MAX,
    });
    let field = |share: Share, rtt: f64| {
        let is_it =
            |group: &&&Group| group.cell.share == Some(share) && group.cell.path_rtt_ms == rtt;
        let ratio = ratio(groups.iter().find(is_it)?)?;
        Some(Field {
            value: ratio.value,
            text: ratio.text().replace(" (", "\n("),
            is_noise: ratio.is_noise(),
        })
    };
    let text = |share: &Share| match share {
        Share::Quota { percent } => format!("{percent} % of a core"),
        share => share.to_string(),
    };
    Map {
        name: label.name,
        title: label.title,
        x_label: "round trip of the path",
        columns: rtts.iter().map(|rtt| format!("{rtt} ms")).collect(),
        rows: shares.iter().map(text).collect(),
        fields: shares
            .iter()
            .map(|&share| rtts.iter().map(|&rtt| field(share, rtt)).collect())
            .collect(),
    }
}
