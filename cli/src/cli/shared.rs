//! Arguments and values that several verbs have.

use clap::Args;
use ipnet::IpNet;

/// How often what is shown is shown again.
#[derive(Clone, Copy, Debug, Args)]
pub struct Refresh {
    /// Refresh until Ctrl-C, every second or as often as given.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "1",
        allow_negative_numbers = true,
        value_parser = parse_period
    )]
    pub watch: Option<f64>,
}

/// Arguments with it allow negative numbers, so that these are refused for what they are: clap
/// takes them for options otherwise, and gives a wrong tip.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds, 0 or more".into()),
    }
}

/// Parses the period of something that is repeated.
pub fn parse_period(text: &str) -> Result<f64, String> {
    parse_seconds(text)
        .ok()
        .filter(|seconds| *seconds > 0.0)
        .ok_or_else(|| "give a number of seconds that is more than 0".into())
}

/// A prefix, or one address.
pub fn parse_prefix(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from))
        .map_err(|_| "give a prefix such as 10.0.0.0/8 or 2001:db8::/32, or an address".into())
}
