//! The file of samples: written step by step, whole at every moment.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use pointsman_solver::fit::read::COLUMNS;
use serde_json::{Map, Value, json};

/// What one step of a sweep showed; times in milliseconds, rates per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Engine kind.
    pub kind: String,
    /// Model.
    pub model: String,
    /// Requests that came in.
    pub load_rps: f64,
    /// Requests answered.
    pub completed_rps: f64,
    /// Share of requests that failed.
    pub failed_share: f64,
    /// Mean tokens of a prompt.
    pub prompt_tokens: f64,
    /// Share of those found in the cache.
    pub hit_rate: f64,
    /// Mean tokens of an answer.
    pub output_tokens: f64,
    /// Mean and median time to the first token.
    pub ttft_ms: (f64, f64),
    /// Mean and median time between tokens.
    pub tbot_ms: (f64, f64),
    /// The network's part of the first one.
    pub network_ms: f64,
    /// Share of KV memory in use.
    pub kv_use: Option<f64>,
    /// Time covered.
    pub seconds: f64,
}

/// An open file of samples.
pub struct Sheet {
    file: File,
    is_json: bool,
    rows: usize,
}

impl Sheet {
    /// Makes the file, in the form that its name asks for.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let is_json = path.extension().is_some_and(|e| e == "jsonl");
        let mut file = File::create(path)
            .with_context(|| format!("--out: cannot write {}", path.display()))?;
        if !is_json {
            let names: Vec<&str> = COLUMNS.iter().map(|c| c.name).collect();
            file.write_all(format!("{}\n", names.join(",")).as_bytes())?;
        }
        Ok(Self {
            file,
            is_json,
            rows: 0,
        })
    }

    /// Appends a row, in one write.
    pub fn write(&mut self, row: &Row) -> anyhow::Result<()> {
        let values = COLUMNS
            .iter()
            .map(|column| (column.name, row.value(column.name)));
        let line = if self.is_json {
            let fields: Map<String, Value> = values
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            Value::Object(fields).to_string()
        } else {
            let fields: Vec<String> = values.map(|(_, value)| field(&value)).collect();
            fields.join(",")
        };
        self.file
            .write_all(format!("{line}\n").as_bytes())
            .context("--out: cannot write")?;
        self.rows += 1;
        Ok(())
    }

    /// Rows written.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

impl Row {
    fn value(&self, column: &str) -> Value {
        let number = |value: f64| json!((value * 1e6).round() / 1e6);
        match column {
            "kind" => json!(self.kind),
            "model" => json!(self.model),
            "load_rps" => number(self.load_rps),
            "completed_rps" => number(self.completed_rps),
            "failed_share" => number(self.failed_share),
            "prompt_tokens" => number(self.prompt_tokens),
            "hit_rate" => number(self.hit_rate),
            "output_tokens" => number(self.output_tokens),
            "ttft_ms" => number(self.ttft_ms.0),
            "tbot_ms" => number(self.tbot_ms.0),
            "ttft_ms_p50" => number(self.ttft_ms.1),
            "tbot_ms_p50" => number(self.tbot_ms.1),
            "network_ms" => number(self.network_ms.min(self.ttft_ms.0).min(self.ttft_ms.1)),
            "kv_use" => self.kv_use.map_or(Value::Null, number),
            "seconds" => number(self.seconds),
            _ => Value::Null,
        }
    }
}

/// A value as CSV has it.
fn field(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.contains([',', '"', '\n', '\r']) => {
            let text = text.replace(['\n', '\r'], " ").replace('"', "\"\"");
            format!("\"{text}\"")
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_solver::fit::read::{Middle, read};

    #[test]
    fn what_is_written_is_what_a_fit_reads() {
        let row = Row {
            kind: "k".into(),
            model: "a, \"b\"".into(),
            load_rps: 10.0,
            completed_rps: 9.5,
            prompt_tokens: 512.0,
            hit_rate: 0.25,
            output_tokens: 128.0,
            ttft_ms: (80.0, 75.0),
            tbot_ms: (9.0, 8.0),
            network_ms: 5.0,
            seconds: 15.0,
            ..Row::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let mut texts = Vec::new();
        for name in ["s.csv", "s.jsonl"] {
            let path = folder.path().join(name);
            let mut sheet = Sheet::create(&path).unwrap();
            sheet.write(&row).unwrap();
            sheet.write(&row).unwrap();
            assert_eq!(sheet.rows(), 2);
            let text = std::fs::read_to_string(path).unwrap();
            let samples = read(name, &text, Middle::Median).unwrap();
            assert_eq!(samples.len(), 2);
            assert_eq!((samples[0].ttft_ms, samples[0].tbot_ms), (70.0, 8.0));
            assert_eq!(samples[0].completed_rps, Some(9.5));
            texts.push(samples);
        }
        assert_eq!(texts[0], texts[1]);
        assert_eq!(texts[0][0].model, "a, \"b\"");
    }

    #[test]
    fn every_column_has_a_value() {
        let row = Row {
            kv_use: Some(0.5),
            ..Row::default()
        };
        for column in COLUMNS {
            assert!(!row.value(column.name).is_null(), "{}", column.name);
        }
    }
}
