//! Expressions over samples, as experiments/*.toml have them: `p50(total_ms, off) / 2`.
//!
//! ```text
//! expression = term { ("+" | "-") term }        term = factor { ("*" | "/") factor }
//! factor     = number | name | 'text' | name "(" [ expression { "," expression } ] ")"
//!            | "(" expression ")"
//! ```
//!
//! A name in a text is what [`Scope::word`] says; as an argument it is the name of a value, of a
//! key or of a configuration. What was not measured has no value.

use std::iter::Peekable;
use std::str::CharIndices;

use anyhow::{Context, Result, bail, ensure};

use super::scope::Scope;
use crate::results::statistics::{Ratio, mean, percentile, ratio_of_means, ratio_of_medians};

#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    Number(f64),
    Name(String),
    Call(String, Vec<Expression>),
    Operation(char, Box<Expression>, Box<Expression>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Ratio(Ratio),
    Text(String),
}

impl Value {
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Ratio(ratio) => Some(ratio.value),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

type Characters<'a> = Peekable<CharIndices<'a>>;

impl Expression {
    pub fn parse(text: &str) -> Result<Self> {
        let mut left = text.char_indices().peekable();
        let parsed = sum(text, &mut left)?;
        skip_blanks(&mut left);
        ensure!(left.peek().is_none(), "more follows an expression: {text:?}");
        Ok(parsed)
    }

    pub fn evaluate(&self, scope: &Scope) -> Option<Value> {
        match self {
            Self::Number(number) => Some(Value::Number(*number)),
            Self::Name(name) => scope.word(name).map(Value::Text),
            Self::Operation(sign, left, right) => {
                let number = |side: &Self| side.evaluate(scope)?.number();
                let (left, right) = (number(left)?, number(right)?);
                let value = match sign {
                    '+' => left + right,
                    '-' => left - right,
                    '*' => left * right,
                    _ => left / right,
                };
                value.is_finite().then_some(Value::Number(value))
            }
            Self::Call(name, arguments) => call(name, arguments, scope),
        }
    }
}

fn skip_blanks(left: &mut Characters) {
    while left.next_if(|(_, one)| one.is_whitespace()).is_some() {}
}

fn next_sign(left: &mut Characters, signs: &[char]) -> Option<char> {
    skip_blanks(left);
    left.next_if(|(_, one)| signs.contains(one)).map(|(_, one)| one)
}

fn sum(text: &str, left: &mut Characters) -> Result<Expression> {
    let mut value = product(text, left)?;
    while let Some(sign) = next_sign(left, &['+', '-']) {
        value = Expression::Operation(sign, value.into(), product(text, left)?.into());
    }
    Ok(value)
}

fn product(text: &str, left: &mut Characters) -> Result<Expression> {
    let mut value = factor(text, left)?;
    while let Some(sign) = next_sign(left, &['*', '/']) {
        value = Expression::Operation(sign, value.into(), factor(text, left)?.into());
    }
    Ok(value)
}

fn factor(text: &str, left: &mut Characters) -> Result<Expression> {
    skip_blanks(left);
    let (begin, first) = left.next().with_context(|| format!("an end too early: {text:?}"))?;
    let mut take = |more: fn(char) -> bool| {
        let mut end = begin + first.len_utf8();
        while let Some((at, one)) = left.next_if(|(_, one)| more(*one)) {
            end = at + one.len_utf8();
        }
        &text[begin..end]
    };
    match first {
        '(' => {
            let value = sum(text, left)?;
            ensure!(next_sign(left, &[')']).is_some(), "a bracket stays open: {text:?}");
            Ok(value)
        }
        '\'' => {
            let name = take(|one| one != '\'')[1..].to_owned();
            left.next();
            Ok(Expression::Name(name))
        }
        '0'..='9' => {
            let number = take(|one| one.is_ascii_digit() || one == '.');
            Ok(Expression::Number(number.parse().with_context(|| format!("in {text:?}"))?))
        }
        _ if first.is_alphabetic() => {
            let name = take(|one| one.is_alphanumeric() || one == '_').to_owned();
            if next_sign(left, &['(']).is_none() {
                return Ok(Expression::Name(name));
            }
            let mut arguments = Vec::new();
            while next_sign(left, &[')']).is_none() {
                arguments.push(sum(text, left)?);
                next_sign(left, &[',']);
            }
            Ok(Expression::Call(name, arguments))
        }
        other => bail!("{other:?} in the expression {text:?}"),
    }
}

fn call(function: &str, arguments: &[Expression], scope: &Scope) -> Option<Value> {
    let name = |place: usize| match arguments.get(place) {
        Some(Expression::Name(name)) => Some(name.as_str()),
        _ => None,
    };
    let number = |place: usize| arguments.get(place)?.evaluate(scope)?.number();
    let ratio = |scope: &Scope| {
        let values = |place| Some(scope.by_turn(name(0)?, Some(name(place)?)));
        ratio_of_medians(&values(1)?, &values(2)?)
    };
    let count = |is_it: fn(&Ratio) -> bool| {
        let all: Vec<_> =
            scope.groups().iter().filter_map(ratio).filter(Ratio::has_interval).collect();
        let found = all.iter().filter(|ratio| is_it(ratio)).count() as f64;
        (!all.is_empty()).then_some(Value::Number(found))
    };
    let number_of = |value: Option<f64>| value.map(Value::Number);
    match function {
        "ratio" => ratio(scope).map(Value::Ratio),
        "ratio_of_means" => means(scope, name(0)?, name(1)?, name(2)?).map(Value::Ratio),
        "sooner" => count(|ratio| ratio.low > 1.0),
        "later" => count(|ratio| ratio.high < 1.0),
        "compared" => count(|_| true),
        "turns" => number_of(percentile(&scope.by_turn(name(0)?, name(1)), 50.0)),
        "count_turns" => Some(Value::Number(scope.by_turn(name(0)?, name(1)).len() as f64)),
        "rounds" => Some(Value::Number(scope.configured(name(0)).len() as f64)),
        "environment" => {
            let value = scope.results.environment.get(name(0)?)?;
            let text = || value.as_str().map(|text| Value::Text(text.to_owned()));
            value.as_f64().map(Value::Number).or_else(text)
        }
        // A value, where another one is at least as great as a bound.
        "at_least" if number(0)? >= number(1)? => arguments.get(2)?.evaluate(scope),
        "at_least" => None,
        "lesser" => number_of(Some(number(0)?.min(number(1)?))),
        // The least mean of all cells.
        "worst" => {
            let of_cell = |cell: &Scope| mean(&cell.values(name(0)?, name(1)));
            number_of(scope.groups().iter().filter_map(of_cell).reduce(f64::min))
        }
        // The least ratio of all cells in which no round of the last configuration had a value.
        "least_ratio" => {
            let of_cell = |cell: &Scope| {
                let clean = cell.values(name(3)?, name(2)).last().is_none_or(|most| *most == 0.0);
                means(cell, name(0)?, name(1)?, name(2)?).filter(|_| clean)
            };
            let all = scope.groups();
            let least = all.iter().filter_map(of_cell).min_by(|a, b| a.value.total_cmp(&b.value));
            least.map(Value::Ratio)
        }
        // The best median of all configurations, and whose it is.
        "best" => number_of(best(scope, name(0)?).map(|(value, _)| value)),
        "best_name" => best(scope, name(0)?).map(|(_, name)| Value::Text(name)),
        // The mean for each value of a key: `178 with 4, 88 with 40`.
        "by" => {
            let word = |part: &Scope| {
                let value = mean(&part.values(name(1)?, None))?;
                Some(format!("{value:.0} with {}", part.word(name(0)?)?))
            };
            let words: Vec<_> = scope.split(&[name(0)?]).iter().filter_map(word).collect();
            (!words.is_empty()).then(|| Value::Text(words.join(", ")))
        }
        _ => statistic(function, &scope.values(name(0)?, name(1))).map(Value::Number),
    }
}

fn means(scope: &Scope, value: &str, over: &str, under: &str) -> Option<Ratio> {
    ratio_of_means(&scope.values(value, Some(over)), &scope.values(value, Some(under)))
}

fn best(scope: &Scope, value: &str) -> Option<(f64, String)> {
    let median = |one: &Scope| {
        Some((percentile(&one.values(value, None), 50.0)?, one.word("configuration")?))
    };
    let all = scope.split(&["configuration"]);
    all.iter().filter_map(median).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// A statistic of ascending values; there is a sum and a number without values, too.
fn statistic(function: &str, values: &[f64]) -> Option<f64> {
    match function {
        "n" => Some(values.len() as f64),
        "sum" => Some(values.iter().sum()),
        "mean" => mean(values),
        "least" => values.first().copied(),
        "most" => values.last().copied(),
        "deviation" => {
            let mean = mean(values)?;
            let squares = values.iter().map(|value| (value - mean) * (value - mean));
            Some((squares.sum::<f64>() / values.len() as f64).sqrt())
        }
        _ => percentile(values, function.strip_prefix('p')?.parse().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::testing::{results, sample};

    #[test]
    fn expressions_are_read_by_their_signs_and_ask_the_samples_of_a_configuration() {
        let results =
            results(vec![sample("off", 40.0), sample("off", 60.0), sample("ahead-0", 10.0)]);
        let value = |text: &str| {
            let value = Expression::parse(text).unwrap().evaluate(&Scope::new(&results));
            value.and_then(|value| value.number())
        };
        assert_eq!(value("1 + 2 * (3 - 1) / 4"), Some(2.0));
        assert_eq!(value("p50(acked_ms, off) / p50(acked_ms, 'ahead-0')"), Some(5.0));
        assert_eq!(value("ratio(acked_ms, off, 'ahead-0')"), Some(5.0));
        assert_eq!(value("n(acked_ms) + rounds(off)"), Some(5.0));
        assert_eq!(value("p50(acked_ms, host)"), None);
        assert_eq!(value("at_least(rounds(off), 2, 7)"), Some(7.0));
        assert_eq!(value("at_least(rounds(off), 3, 7)"), None);
        assert_eq!(value("later(acked_ms, off, 'ahead-0')"), None, "too few for an interval");
        for wrong in ["1 +", "(1", "1 2", "%"] {
            assert!(Expression::parse(wrong).is_err(), "{wrong}");
        }
    }
}
