//! Values of the file, as errors show them.

use toml::Value;

pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(truth) => truth.to_string(),
        other => format!("({})", other.type_str()),
    }
}
