//! Writes a timeline as a trace.

use serde_json::{Value, json};

use super::{Chart, plus_minus};

impl Chart {
    /// Returns JSON that <https://ui.perfetto.dev> and `chrome://tracing` open. Each row is a process, and each kind of
    /// work is a thread. Times are in microseconds ("Trace Event Format", complete events).
    pub fn perfetto(&self) -> String {
        let mut events = Vec::new();
        let (first, _) = self.range();
        for (at, row) in self.rows.iter().enumerate() {
            let process = format!("{}{}", self.name(at), plus_minus(row.uncertainty));
            events.push(json!({"ph": "M", "name": "process_name", "pid": at, "args": {"name": process}}));
            for kind in self.kinds() {
                events.push(json!({
                    "ph": "M", "name": "thread_name", "pid": at, "tid": kind as usize, "args": {"name": kind.name()},
                }));
            }
            events.extend(row.spans.iter().map(|span| -> Value {
                json!({
                    "ph": "X", "name": span.name, "cat": span.kind.name(), "pid": at, "tid": span.kind as usize,
                    "ts": 1e3 * (span.start - first), "dur": 1e3 * (span.end - span.start),
                })
            }));
        }
        json!({
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"title": self.title, "note": self.note},
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::chart;
    use super::*;

    #[test]
    fn a_trace_has_every_span_on_its_line_in_microseconds() {
        let trace: Value = serde_json::from_str(&chart().perfetto()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(spans.len(), 6);
        assert_eq!((spans[0]["ts"].as_f64(), spans[0]["dur"].as_f64()), (Some(0.0), Some(2000.0)));
        assert_eq!((spans[4]["pid"].as_u64(), spans[4]["tid"].as_u64()), (Some(1), Some(1)));
        assert!(events.iter().any(|event| event["args"]["name"] == "GPU 1 ± 250.0 µs"));
    }
}
