//! Samples as a file has them: CSV with a head line, or one JSON object a line.
//!
//! Strict, because a mistaken column would become a capacity: unknown columns, missing ones and
//! numbers out of range are refused by file, line, column and value. Lines that begin with `#` and
//! empty ones are skipped in both forms.

use std::collections::BTreeSet;

use super::sample::Sample;

/// Most samples of one file.
pub const MOST_SAMPLES: usize = 200_000;
/// Longest value repeated in an error, characters.
const SHOWN: usize = 60;
/// What a sample covers where it does not say, seconds.
const SECONDS: f64 = 1.0;

/// A column of a file of samples.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What stands in it.
    pub meaning: &'static str,
    /// Least and largest value; none for text.
    range: Option<(f64, f64)>,
    required: bool,
}

const fn number(
    name: &'static str,
    range: (f64, f64),
    required: bool,
    meaning: &'static str,
) -> Column {
    Column {
        name,
        meaning,
        range: Some(range),
        required,
    }
}

const fn text(name: &'static str, meaning: &'static str) -> Column {
    Column {
        name,
        meaning,
        range: None,
        required: false,
    }
}

/// Every column, in the order in which they are written.
pub const COLUMNS: [Column; 15] = [
    text("kind", "engine kind"),
    text("model", "model"),
    number(
        "load_rps",
        (1e-9, 1e9),
        true,
        "requests that came in, per second",
    ),
    number(
        "completed_rps",
        (0.0, 1e9),
        false,
        "requests answered, per second",
    ),
    number(
        "failed_share",
        (0.0, 1.0),
        false,
        "share of requests that failed",
    ),
    number("prompt_tokens", (1.0, 1e8), true, "mean tokens of a prompt"),
    number(
        "hit_rate",
        (0.0, 1.0),
        false,
        "share of those found in the cache",
    ),
    number(
        "output_tokens",
        (1.0, 1e8),
        true,
        "mean tokens of an answer",
    ),
    number("ttft_ms", (0.0, 1e8), true, "mean time to the first token"),
    number("tbot_ms", (0.0, 1e8), true, "mean time between two tokens"),
    number(
        "ttft_ms_p50",
        (0.0, 1e8),
        false,
        "median time to the first token",
    ),
    number(
        "tbot_ms_p50",
        (0.0, 1e8),
        false,
        "median time between two tokens",
    ),
    number(
        "network_ms",
        (0.0, 1e6),
        false,
        "network's part of ttft_ms, taken off",
    ),
    number("kv_use", (0.0, 1.0), false, "share of KV memory in use"),
    number("seconds", (1e-6, 1e9), false, "time covered"),
];

/// Which of the times that a sample has are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Middle {
    /// Means: what the solver minimises.
    #[default]
    Mean,
    /// Medians, where a machine's own hiccups would drown the means.
    Median,
}

/// Why a file was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A value is not what its column allows.
    #[error("{file}:{line}: {column} = {value}: must be {allowed}")]
    Value {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column.
        column: String,
        /// What stands there.
        value: String,
        /// What may stand there.
        allowed: String,
    },
    /// A line is not what its form allows.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// There is nothing to read.
    #[error("{file}: holds no samples")]
    Empty {
        /// The file.
        file: String,
    },
}

/// Reads the samples of a file's text. `file` is only named in errors.
///
/// # Errors
///
/// [`ReadError`] names line, column, value and what is allowed.
pub fn read(file: &str, text: &str, middle: Middle) -> Result<Vec<Sample>, ReadError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim_end_matches('\r')))
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
        .peekable();
    let Some(&(head_line, head)) = lines.peek() else {
        return Err(ReadError::Empty { file: file.into() });
    };
    let is_json = head.trim_start().starts_with('{');
    let mut columns = Vec::new();
    if !is_json {
        lines.next();
        let at = At {
            file,
            line: head_line,
        };
        columns = at.columns(head)?;
    }
    let mut samples = Vec::new();
    for (line, text) in lines {
        let at = At { file, line };
        if samples.len() == MOST_SAMPLES {
            return Err(at.refuse(format!("at most {MOST_SAMPLES} samples are read")));
        }
        let row = match is_json {
            true => at.json(text)?,
            false => at.csv(text, &columns)?,
        };
        samples.push(at.sample(&row, middle)?);
    }
    match samples.is_empty() {
        true => Err(ReadError::Empty { file: file.into() }),
        false => Ok(samples),
    }
}

/// One row: what stands in each of [`COLUMNS`].
#[derive(Default)]
struct Row {
    numbers: [Option<f64>; COLUMNS.len()],
    texts: [Option<String>; COLUMNS.len()],
}

/// A line, for errors.
struct At<'a> {
    file: &'a str,
    line: usize,
}

impl At<'_> {
    fn refuse(&self, problem: impl Into<String>) -> ReadError {
        ReadError::Line {
            file: self.file.into(),
            line: self.line,
            problem: problem.into(),
        }
    }

    fn refuse_value(&self, column: &str, value: &str, allowed: impl Into<String>) -> ReadError {
        let mut shown: String = value.chars().take(SHOWN).collect();
        if shown.len() < value.len() {
            shown.push_str("...");
        }
        ReadError::Value {
            file: self.file.into(),
            line: self.line,
            column: column.into(),
            value: if shown.is_empty() {
                "(empty)".into()
            } else {
                shown
            },
            allowed: allowed.into(),
        }
    }

    /// Positions in [`COLUMNS`] of the columns that a head line names.
    fn columns(&self, head: &str) -> Result<Vec<usize>, ReadError> {
        let mut columns = Vec::new();
        for name in self.fields(head)? {
            let at = self.column(name.trim())?;
            if columns.contains(&at) {
                return Err(self.refuse(format!("column {} stands twice", name.trim())));
            }
            columns.push(at);
        }
        for (at, column) in COLUMNS.iter().enumerate() {
            if column.required && !columns.contains(&at) {
                return Err(self.refuse(format!("column {} is missing", column.name)));
            }
        }
        Ok(columns)
    }

    fn column(&self, name: &str) -> Result<usize, ReadError> {
        COLUMNS.iter().position(|c| c.name == name).ok_or_else(|| {
            let known: Vec<&str> = COLUMNS.iter().map(|c| c.name).collect();
            let shown: String = name.chars().take(SHOWN).collect();
            self.refuse(format!(
                "unknown column {shown:?}: must be one of {}",
                known.join(", ")
            ))
        })
    }

    /// Fields of a CSV line; a quoted one may hold commas and doubled quotes.
    fn fields(&self, text: &str) -> Result<Vec<String>, ReadError> {
        let mut fields = vec![String::new()];
        let mut quoted = false;
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            let field = fields.last_mut().expect("one stands from the start");
            match letter {
                '"' if quoted && letters.peek() == Some(&'"') => {
                    letters.next();
                    field.push('"');
                }
                '"' if quoted => quoted = false,
                '"' if field.trim().is_empty() => {
                    field.clear();
                    quoted = true;
                }
                ',' if !quoted => fields.push(String::new()),
                _ => field.push(letter),
            }
        }
        match quoted {
            true => Err(self.refuse("a quote is opened and not closed")),
            false => Ok(fields),
        }
    }

    fn csv(&self, text: &str, columns: &[usize]) -> Result<Row, ReadError> {
        let fields = self.fields(text)?;
        if fields.len() != columns.len() {
            return Err(self.refuse(format!(
                "{} fields; the head line names {}",
                fields.len(),
                columns.len()
            )));
        }
        let mut row = Row::default();
        for (&at, field) in columns.iter().zip(&fields) {
            let (column, field) = (&COLUMNS[at], field.trim());
            if column.range.is_none() {
                row.texts[at] = Some(field.to_owned());
            } else if !field.is_empty() {
                let value = field.parse().ok();
                row.numbers[at] = Some(self.number(column, field, value)?);
            }
        }
        Ok(row)
    }

    fn json(&self, text: &str) -> Result<Row, ReadError> {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)
            .map_err(|error| self.refuse(format!("no JSON object: {error}")))?;
        let mut row = Row::default();
        for (name, value) in &object {
            let at = self.column(name)?;
            let column = &COLUMNS[at];
            match (column.range, value) {
                (_, serde_json::Value::Null) => {}
                (None, serde_json::Value::String(text)) => row.texts[at] = Some(text.clone()),
                (None, other) => {
                    return Err(self.refuse_value(name, &other.to_string(), "a text"));
                }
                (Some(_), other) => {
                    let number = other.as_f64();
                    row.numbers[at] = Some(self.number(column, &other.to_string(), number)?);
                }
            }
        }
        Ok(row)
    }

    fn number(&self, column: &Column, text: &str, value: Option<f64>) -> Result<f64, ReadError> {
        let (least, most) = column.range.unwrap_or((f64::MIN, f64::MAX));
        value
            .filter(|v| v.is_finite() && (least..=most).contains(v))
            .ok_or_else(|| {
                self.refuse_value(
                    column.name,
                    text,
                    format!("a number from {least} to {most}"),
                )
            })
    }

    fn sample(&self, row: &Row, middle: Middle) -> Result<Sample, ReadError> {
        let index = |name: &str| {
            let at = COLUMNS.iter().position(|c| c.name == name);
            at.expect("only names of columns are asked for")
        };
        let missing = |c: &&Column| c.required && row.numbers[index(c.name)].is_none();
        if let Some(column) = COLUMNS.iter().find(missing) {
            return Err(self.refuse(format!("column {} is missing", column.name)));
        }
        let optional = |name: &str| row.numbers[index(name)];
        let required = |name: &str| optional(name).expect("required ones were looked for above");
        let time = |mean: &str, median: &str| match middle {
            Middle::Mean => required(mean),
            Middle::Median => optional(median).unwrap_or_else(|| required(mean)),
        };
        let text = |name: &str| row.texts[index(name)].clone().unwrap_or_default();
        let network_ms = optional("network_ms").unwrap_or(0.0);
        let ttft_ms = time("ttft_ms", "ttft_ms_p50");
        if network_ms > ttft_ms {
            let allowed = format!("at most ttft_ms, {ttft_ms}");
            return Err(self.refuse_value("network_ms", &network_ms.to_string(), allowed));
        }
        Ok(Sample {
            kind: text("kind"),
            model: text("model"),
            load_rps: required("load_rps"),
            completed_rps: optional("completed_rps"),
            failed_share: optional("failed_share").unwrap_or(0.0),
            prompt_tokens: required("prompt_tokens"),
            hit_rate: optional("hit_rate").unwrap_or(0.0),
            output_tokens: required("output_tokens"),
            ttft_ms: ttft_ms - network_ms,
            tbot_ms: time("tbot_ms", "tbot_ms_p50"),
            kv_use: optional("kv_use"),
            seconds: optional("seconds").unwrap_or(SECONDS),
        })
    }
}

/// Kinds and models of samples, each once, in order.
#[must_use]
pub fn groups(samples: &[Sample]) -> BTreeSet<(String, String)> {
    let key = |s: &Sample| (s.kind.clone(), s.model.clone());
    samples.iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "load_rps,prompt_tokens,output_tokens,ttft_ms,tbot_ms";

    fn refused(text: &str) -> String {
        read("s.csv", text, Middle::Mean).unwrap_err().to_string()
    }

    #[test]
    fn both_forms_give_the_same_samples() {
        let csv = "# made by hand\nmodel,load_rps,prompt_tokens,hit_rate,output_tokens,ttft_ms,\
                   tbot_ms,network_ms\n\n\"a, b\",10,1000,0.5,200,80,9.5,20\n";
        let json = r#"{"model":"a, b","load_rps":10,"prompt_tokens":1000,"hit_rate":0.5,
            "output_tokens":200,"ttft_ms":80,"tbot_ms":9.5,"network_ms":20}"#;
        let from_csv = read("s.csv", csv, Middle::Mean).unwrap();
        let from_json = read("s.jsonl", &json.replace('\n', ""), Middle::Mean).unwrap();
        assert_eq!(from_csv, from_json);
        let one = &from_csv[0];
        assert_eq!((one.model.as_str(), one.kind.as_str()), ("a, b", ""));
        assert_eq!((one.ttft_ms, one.uncached_tokens()), (60.0, 500.0));
        assert_eq!((one.seconds, one.completed_rps), (1.0, None));
    }

    #[test]
    fn medians_stand_for_means_where_they_are_asked_for_and_there() {
        let text = format!("{HEAD},ttft_ms_p50\n1,2,3,40,5,30\n1,2,3,40,5,\n");
        let times = |middle| -> Vec<f64> {
            let samples = read("s.csv", &text, middle).unwrap();
            samples.iter().map(|s| s.ttft_ms).collect()
        };
        assert_eq!(times(Middle::Mean), [40.0, 40.0]);
        assert_eq!(times(Middle::Median), [30.0, 40.0]);
    }

    #[test]
    fn a_bad_value_is_named_by_file_line_column_and_what_is_allowed() {
        let row = |row: &str| refused(&format!("{HEAD}\n1,2,3,4,5\n{row}\n"));
        assert_eq!(
            row("-1,2,3,4,5"),
            "s.csv:3: load_rps = -1: must be a number from 0.000000001 to 1000000000"
        );
        for (bad, told) in [
            (
                "1,2,3,NaN,5",
                "s.csv:3: ttft_ms = NaN: must be a number from 0 to 100000000",
            ),
            (
                "1,2,3,4,x",
                "s.csv:3: tbot_ms = x: must be a number from 0 to 100000000",
            ),
            ("1,,3,4,5", "s.csv:3: column prompt_tokens is missing"),
            ("1,2,3,4", "s.csv:3: 4 fields; the head line names 5"),
            ("1,2,3,4,\"5", "s.csv:3: a quote is opened and not closed"),
        ] {
            assert_eq!(row(bad), told);
        }
        let with =
            |column: &str, value: &str| refused(&format!("{HEAD},{column}\n1,2,3,4,5,{value}\n"));
        assert_eq!(
            with("hit_rate", "1.5"),
            "s.csv:2: hit_rate = 1.5: must be a number from 0 to 1"
        );
        assert_eq!(
            with("network_ms", "9"),
            "s.csv:2: network_ms = 9: must be at most ttft_ms, 4"
        );
    }

    #[test]
    fn a_bad_head_line_is_named() {
        let told = refused("load_rps,ttft_s\n");
        assert!(
            told.starts_with("s.csv:1: unknown column \"ttft_s\": must be one of kind, "),
            "{told}"
        );
        assert_eq!(
            refused("load_rps,load_rps\n"),
            "s.csv:1: column load_rps stands twice"
        );
        assert_eq!(
            refused("load_rps\n"),
            "s.csv:1: column prompt_tokens is missing"
        );
        assert_eq!(refused("# nothing\n"), "s.csv: holds no samples");
        assert_eq!(refused(&format!("{HEAD}\n")), "s.csv: holds no samples");
    }

    #[test]
    fn bad_json_is_named() {
        let good = r#"{"load_rps":1,"prompt_tokens":2,"output_tokens":3,"ttft_ms":4,"tbot_ms":5}"#;
        let after = |line: &str| refused(&format!("{good}\n{line}\n"));
        assert!(after("{").starts_with("s.csv:2: no JSON object: "));
        assert!(after("[1]").starts_with("s.csv:2: no JSON object: "));
        assert_eq!(
            after(r#"{"load_rps":"fast"}"#),
            "s.csv:2: load_rps = \"fast\": must be a number from 0.000000001 to 1000000000"
        );
        assert_eq!(after(r#"{"kind":7}"#), "s.csv:2: kind = 7: must be a text");
        assert_eq!(after("{}"), "s.csv:2: column load_rps is missing");
        assert!(after(r#"{"speed":7}"#).contains("unknown column \"speed\""));
    }
}
