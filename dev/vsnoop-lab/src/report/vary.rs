//! Words that a name and a value are repeated for.

use std::collections::BTreeMap;

/// A word that stands for `$NAME`.
#[derive(Clone, Debug)]
pub struct Variation {
    sign: String,
    value: String,
    name: String,
}

impl Variation {
    pub fn value(&self, text: &str) -> String {
        text.replace(&self.sign, &self.value)
    }

    pub fn name(&self, text: &str) -> String {
        text.replace(&self.sign, &self.name)
    }
}

/// Each combination of words.
pub fn variations(vary: &BTreeMap<String, Vec<String>>) -> Vec<Vec<Variation>> {
    let mut all = vec![Vec::new()];
    for (name, words) in vary {
        let longer = all.iter().flat_map(|known: &Vec<_>| {
            words.iter().map(move |word| {
                let (value, text) = word.split_once('=').unwrap_or((word, word));
                let [value, text] = [value, text].map(str::to_owned);
                let one = Variation { sign: format!("${name}"), value, name: text };
                known.iter().cloned().chain([one]).collect::<Vec<_>>()
            })
        });
        all = longer.collect();
    }
    all
}
