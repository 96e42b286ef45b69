//! The state that `vsnoop top` shows. It takes readings, and decides what the reader reads.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::columns::{EARLY, FLOWS, PORTS};
use super::list::{Browse, List};
use super::reader::{Reading, Wish};
use super::rows::{self, EarlyBytes, FlowRow, PortRow, Total};
use super::sample::{FlowsSample, PortId, Sample};

/// Length of a port's history, samples.
const HISTORY: usize = 200;

pub struct Model {
    pub ports: List<PortRow>,
    /// The flows of one port, in place of the ports.
    pub flows: Option<Flows>,
    pub overlay: Overlay,
    pub is_paused: bool,
    pub total: Total,
    pub damaged: usize,
    pub has_helper: bool,
    /// Why the last reading failed.
    pub error: Option<String>,
    pub interval: Duration,
    /// Rows of a page; the view sets it.
    pub page: usize,
    before: Option<Sample>,
    history: HashMap<PortId, VecDeque<u64>>,
}

/// The flows of a port.
pub struct Flows {
    pub port: PortId,
    /// The port's name, also after it is gone.
    pub name: String,
    pub list: List<FlowRow>,
    /// A reading has come.
    pub is_read: bool,
    /// The port is not attached any more.
    pub is_gone: bool,
    before: Option<EarlyBytes>,
}

/// A box over the table, or a line that takes the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overlay {
    None,
    Help,
    /// The menu of columns: the chosen one of those that are used.
    Columns {
        cursor: usize,
    },
    /// The filter is edited; Esc brings the one before back.
    Filter {
        before: String,
    },
}

impl Model {
    pub fn new(interval: Duration) -> Self {
        Self {
            ports: List::new(&PORTS, EARLY),
            flows: None,
            overlay: Overlay::None,
            is_paused: false,
            total: Total::default(),
            damaged: 0,
            has_helper: true,
            error: None,
            interval,
            page: 1,
            before: None,
            history: HashMap::new(),
        }
    }

    /// Tells the reader what to read.
    pub fn wish(&self) -> Wish {
        Wish { flows_of: self.flows.as_ref().map(|flows| flows.port), is_paused: self.is_paused }
    }

    /// The list that keys act on.
    pub fn list(&mut self) -> &mut dyn Browse {
        match &mut self.flows {
            Some(flows) => &mut flows.list,
            None => &mut self.ports,
        }
    }

    pub fn take_reading(&mut self, reading: Reading) {
        match reading {
            Reading::Ports(sample) => self.take_ports(sample),
            Reading::Flows(sample) => self.take_flows(&sample),
            Reading::Failed(reason) => self.error = Some(reason),
        }
    }

    fn take_ports(&mut self, sample: Sample) {
        // It was on its way when the pause began.
        if self.is_paused && self.before.is_some() {
            return;
        }
        let rows = rows::of_ports(self.before.as_ref(), &sample);
        self.error = None;
        self.total = Total::sum_rows(&rows);
        self.damaged = sample.damaged;
        self.has_helper = sample.has_helper;
        self.remember_rows(&rows);
        self.ports.replace_rows(rows);
        self.before = Some(sample);
    }

    fn remember_rows(&mut self, rows: &[PortRow]) {
        let mut history = HashMap::with_capacity(rows.len());
        for row in rows {
            let mut rates = self.history.remove(&row.id).unwrap_or_default();
            if let Some(change) = &row.change {
                rates.push_back(change.early_rate() as u64);
            }
            if rates.len() > HISTORY {
                rates.pop_front();
            }
            history.insert(row.id, rates);
        }
        self.history = history;
    }

    /// Bytes acknowledged early per second in the last intervals of a port, the latest last.
    pub fn history(&self, port: PortId) -> Vec<u64> {
        self.history.get(&port).map_or(Vec::new(), |rates| rates.iter().copied().collect())
    }

    fn take_flows(&mut self, sample: &FlowsSample) {
        let Some(shown) = self.flows.as_mut().filter(|shown| shown.port == sample.port) else {
            return;
        };
        if self.is_paused && shown.is_read {
            return;
        }
        shown.is_read = true;
        let Some(flows) = &sample.flows else {
            shown.is_gone = true;
            return;
        };
        shown.list.replace_rows(rows::of_flows(shown.before.as_ref(), sample));
        shown.before = Some(EarlyBytes::sum_flows(sample.at, flows));
    }

    /// Shows the flows of the selected port.
    pub fn open_details(&mut self) {
        let Some(port) = self.ports.selected_row().filter(|_| self.flows.is_none()) else { return };
        self.flows = Some(Flows {
            port: port.id,
            name: port.name.clone(),
            list: List::new(&FLOWS, EARLY),
            is_read: false,
            is_gone: false,
            before: None,
        });
    }

    /// Ends what was opened last: a filter, or the flows of a port.
    pub fn go_back(&mut self) {
        if self.list().filter().is_empty() {
            self.flows = None;
        } else {
            self.list().set_filter(String::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::top::testing::{flow, port, sample};

    fn model() -> Model {
        let mut model = Model::new(Duration::from_secs(1));
        model.take_reading(Reading::Ports(sample(vec![port(1, "tap0"), port(2, "tap1")])));
        model
    }

    fn flows(port: u64, flows: Option<Vec<crate::top::sample::FlowSample>>) -> Reading {
        Reading::Flows(FlowsSample { port: PortId(port), at: Instant::now(), flows })
    }

    #[test]
    fn a_pause_keeps_what_is_shown_and_still_opens_flows() {
        let mut model = model();
        model.is_paused = true;
        model.take_reading(Reading::Ports(sample(Vec::new())));
        assert_eq!(model.ports.len(), 2);
        model.open_details();
        assert_eq!(model.wish(), Wish { flows_of: Some(PortId(1)), is_paused: true });
        model.take_reading(flows(1, Some(vec![flow(1)])));
        model.take_reading(flows(1, Some(Vec::new())));
        assert_eq!(model.flows.as_ref().unwrap().list.len(), 1);
        model.is_paused = false;
        model.take_reading(flows(1, Some(Vec::new())));
        assert_eq!(model.flows.as_ref().unwrap().list.len(), 0);
    }

    #[test]
    fn flows_of_a_port_that_was_left_are_not_shown_for_another() {
        let mut model = model();
        model.ports.move_to(1);
        model.open_details();
        model.take_reading(flows(1, Some(vec![flow(1)])));
        let shown = model.flows.as_ref().unwrap();
        assert_eq!((shown.port, shown.is_read, shown.list.len()), (PortId(2), false, 0));
    }

    #[test]
    fn a_port_that_goes_while_its_flows_are_shown_is_said_and_they_stay() {
        let mut model = model();
        model.open_details();
        model.take_reading(flows(1, Some(vec![flow(1)])));
        model.take_reading(Reading::Ports(sample(vec![port(2, "tap1")])));
        model.take_reading(flows(1, None));
        let shown = model.flows.as_ref().unwrap();
        assert!(shown.is_gone && shown.list.len() == 1 && shown.name == "tap0");
        model.go_back();
        assert!(model.flows.is_none());
        assert_eq!(model.ports.len(), 1);
    }

    #[test]
    fn without_ports_nothing_is_opened() {
        let mut model = Model::new(Duration::from_secs(1));
        model.take_reading(Reading::Ports(sample(Vec::new())));
        model.open_details();
        assert!(model.flows.is_none());
    }

    #[test]
    fn a_failure_is_said_until_the_next_good_sample() {
        let mut model = model();
        model.take_reading(Reading::Failed("no".into()));
        assert_eq!((model.error.as_deref(), model.ports.len()), (Some("no"), 2));
        model.take_reading(Reading::Ports(sample(Vec::new())));
        assert_eq!(model.error, None);
    }

    #[test]
    fn the_history_of_a_port_is_bounded_and_goes_with_it() {
        let mut model = model();
        for _ in 0..2 * HISTORY {
            model.take_reading(Reading::Ports(sample(vec![port(1, "tap0")])));
        }
        assert_eq!(model.history(PortId(1)).len(), HISTORY);
        assert!(model.history(PortId(2)).is_empty());
        assert_eq!(model.history.len(), 1);
    }
}
