//! Texts with expressions in braces, and how their values are written: `{p50(total_ms, off):ms}`.

use anyhow::{Context, Result};
use serde::{Deserialize, Deserializer, de::Error};

use super::expression::{Expression, Value};
use super::scope::Scope;
use crate::results::size_text;
use crate::results::table::{NOT_MEASURED, milliseconds, ratio};

#[derive(Clone, Debug, PartialEq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Value { expression: Expression, format: String },
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|error| D::Error::custom(format!("{error:#}")))
    }
}

impl Template {
    pub fn parse(text: &str) -> Result<Self> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, from)) = rest.split_once('{') {
            let (inside, after) = from.split_once('}').context("a brace stays open")?;
            let (expression, format) = inside.rsplit_once(':').unwrap_or((inside, ""));
            pieces.push(Piece::Text(before.to_owned()));
            let expression = Expression::parse(expression)?;
            pieces.push(Piece::Value { expression, format: format.to_owned() });
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Self(pieces))
    }

    /// `None` if a value was not measured.
    pub fn render_all(&self, scope: &Scope) -> Option<String> {
        self.0.iter().map(|piece| piece.render(scope)).collect()
    }

    /// With a sign for what was not measured.
    pub fn render(&self, scope: &Scope) -> String {
        let text = |piece: &Piece| piece.render(scope).unwrap_or_else(|| NOT_MEASURED.to_owned());
        self.0.iter().map(text).collect()
    }

    /// Whether a value was measured, beside words.
    pub fn is_measured(&self, scope: &Scope) -> bool {
        self.0.iter().any(|piece| match piece {
            Piece::Text(_) => false,
            Piece::Value { expression, .. } => expression.evaluate(scope).is_some(),
        })
    }
}

impl Piece {
    fn render(&self, scope: &Scope) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Value { expression, format } => {
                Some(formatted(&expression.evaluate(scope)?, format))
            }
        }
    }
}

fn formatted(value: &Value, format: &str) -> String {
    let number = match value {
        Value::Text(text) if format == "lower" => return text.to_lowercase(),
        Value::Text(text) => return text.clone(),
        Value::Ratio(ratio) if format.is_empty() => return ratio.to_text(),
        value => value.number().unwrap_or_default(),
    };
    match format {
        "ms" => milliseconds(number),
        "r" => ratio(number),
        "rate" if number < 10.0 => format!("{number:.2}"),
        "rate" | "mbps" if number < 100.0 => format!("{number:.1}"),
        "rate" | "mbps" => format!("{number:.0}"),
        "size" => size_text(number as u64),
        "more" => format!("{:+.1}", (number - 1.0) * 100.0),
        digits => match digits.parse::<usize>() {
            Ok(digits) => format!("{number:.digits$}"),
            Err(_) => number.to_string(),
        },
    }
}
