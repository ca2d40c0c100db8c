//! A drill as an SVG picture: panels over one axis of time, and lines where something was done to
//! the world.
//!
//! Not the picture of a fit (`pointsman-solver fit --svg`): that one is of samples over load, on a
//! logarithmic scale; here everything is over time and begins at 0.

use std::fmt::Write;

/// Width of a picture, height of a panel, margins: left, right, top, bottom.
const WIDTH: f64 = 900.0;
const PANEL: f64 = 190.0;
const MARGIN: (f64, f64, f64, f64) = (64.0, 150.0, 30.0, 26.0);
/// Height of the title.
const TITLE: f64 = 30.0;
/// Colours of a panel's lines, in turn.
const COLOURS: [&str; 8] = [
    "#1b6ca8", "#c8553d", "#4c8c4a", "#8e5ba6", "#b58900", "#3a9b9b", "#7a5c45", "#555555",
];

/// A picture of a drill.
#[derive(Default)]
pub(super) struct Picture {
    panels: Vec<Panel>,
    marks: Vec<(f64, String)>,
}

/// One quantity, as several saw it.
pub(super) struct Panel {
    title: String,
    lines: Vec<(String, Vec<(f64, f64)>)>,
    bar: Option<f64>,
}

impl Panel {
    /// A panel without lines.
    pub(super) fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            lines: Vec::new(),
            bar: None,
        }
    }

    /// One line more: seconds and values.
    pub(super) fn line(mut self, name: &str, points: Vec<(f64, f64)>) -> Self {
        let finite = |point: &(f64, f64)| point.0.is_finite() && point.1.is_finite();
        let points = points.into_iter().filter(finite).collect();
        self.lines.push((name.to_owned(), points));
        self
    }

    /// The value that must not be crossed.
    pub(super) fn bar(mut self, value: f64) -> Self {
        self.bar = Some(value);
        self
    }

    fn most(&self) -> f64 {
        let values = self.lines.iter().flat_map(|(_, points)| points);
        let most = values.map(|(_, value)| *value).chain(self.bar);
        rounded_up(most.fold(0.0, f64::max))
    }
}

impl Picture {
    /// Adds a panel below those that are there.
    pub(super) fn panel(&mut self, panel: Panel) {
        self.panels.push(panel);
    }

    /// Marks a moment, seconds.
    pub(super) fn mark(&mut self, at_s: f64, text: &str) {
        self.marks.push((at_s, text.to_owned()));
    }

    /// The picture.
    pub(super) fn svg(&self, title: &str) -> String {
        let height = TITLE + PANEL * self.panels.len() as f64;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
             <text x=\"{}\" y=\"20\" font-size=\"14\">{}</text>\n",
            MARGIN.0,
            escaped(title)
        );
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        let times = lines.flat_map(|(_, points)| points).map(|point| point.0);
        let marks = self.marks.iter().map(|mark| mark.0);
        let last_s = times.chain(marks).fold(1.0, f64::max);
        for (number, panel) in self.panels.iter().enumerate() {
            let top = TITLE + PANEL * number as f64 + MARGIN.2;
            let frame = Frame {
                top,
                last_s,
                most: panel.most(),
            };
            frame.axes(&panel.title, &mut text);
            for (at_s, mark) in &self.marks {
                frame.mark(*at_s, if number == 0 { mark } else { "" }, &mut text);
            }
            if let Some(bar) = panel.bar {
                frame.bar(bar, &mut text);
            }
            for (number, (name, points)) in panel.lines.iter().enumerate() {
                frame.line(number, name, points, &mut text);
            }
        }
        text.push_str("</svg>\n");
        text
    }
}

/// Where a panel stands and what its axes hold.
struct Frame {
    top: f64,
    last_s: f64,
    most: f64,
}

impl Frame {
    fn x(&self, at_s: f64) -> f64 {
        let width = WIDTH - MARGIN.0 - MARGIN.1;
        MARGIN.0 + width * (at_s / self.last_s).clamp(0.0, 1.0)
    }

    fn bottom(&self) -> f64 {
        self.top + PANEL - MARGIN.2 - MARGIN.3
    }

    fn y(&self, value: f64) -> f64 {
        let height = self.bottom() - self.top;
        self.bottom() - height * (value / self.most).clamp(0.0, 1.0)
    }

    fn axes(&self, title: &str, text: &mut String) {
        let (left, right) = (self.x(0.0), self.x(self.last_s));
        let (top, bottom) = (self.top, self.bottom());
        let _ = writeln!(
            text,
            "<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" fill=\"none\" \
             stroke=\"#444\"/>\n<text x=\"{left:.1}\" y=\"{:.1}\">{}</text>",
            top - 6.0,
            escaped(title)
        );
        for part in [0.0, 0.5, 1.0] {
            let value = self.most * part;
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                left - 6.0,
                self.y(value) + 4.0
            );
        }
        let step_s = rounded_up(self.last_s / 8.0);
        let mut at_s = 0.0;
        while at_s <= self.last_s {
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at_s} s</text>",
                self.x(at_s),
                bottom + 15.0
            );
            at_s += step_s;
        }
    }

    fn mark(&self, at_s: f64, name: &str, text: &mut String) {
        let (x, top, bottom) = (self.x(at_s), self.top, self.bottom());
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"#a00\" stroke-dasharray=\"4 3\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#a00\">{}</text>",
            x + 3.0,
            top + 9.0,
            escaped(name)
        );
    }

    fn bar(&self, value: f64, text: &mut String) {
        let (left, right, y) = (self.x(0.0), self.x(self.last_s), self.y(value));
        let _ = writeln!(
            text,
            "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#888\" stroke-dasharray=\"2 3\"/>"
        );
    }

    fn line(&self, number: usize, name: &str, points: &[(f64, f64)], text: &mut String) {
        let colour = COLOURS[number % COLOURS.len()];
        let _ = write!(
            text,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.3\" points=\""
        );
        for &(at_s, value) in points {
            let _ = write!(text, "{:.1},{:.1} ", self.x(at_s), self.y(value));
        }
        let _ = writeln!(
            text,
            "\"/>\n<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            self.x(self.last_s) + 8.0,
            self.top + 10.0 + 14.0 * number as f64,
            escaped(name)
        );
    }
}

/// The next number of the form 1, 2 or 5 times a power of ten; 1 for what is not above 0.
fn rounded_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let decade = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|first| first * decade);
    steps
        .into_iter()
        .find(|step| *step >= value)
        .unwrap_or(10.0 * decade)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, end) in [
            (0.0, 1.0),
            (1.0, 1.0),
            (1.2, 2.0),
            (37.0, 50.0),
            (0.03, 0.05),
        ] {
            assert!((rounded_up(value) - end).abs() < 1e-12, "{value}");
        }
    }

    #[test]
    fn every_line_and_mark_is_drawn_and_what_is_not_finite_is_not() {
        let mut picture = Picture::default();
        picture.panel(
            Panel::new("share & <more>")
                .line("a", vec![(0.0, 0.0), (5.0, 10.0), (6.0, f64::NAN)])
                .line("b", vec![])
                .bar(4.0),
        );
        picture.mark(2.5, "killed");
        let svg = picture.svg("dead-engine");
        // Half of the time is half of the width between the margins, 686.
        assert!(svg.contains("<path d=\"M407.0 60.0V194.0\""), "{svg}");
        assert!(svg.contains("points=\"64.0,194.0 750.0,60.0 \""), "{svg}");
        assert!(svg.contains(">share &amp; &lt;more></text>"), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.ends_with("</svg>\n"));
    }
}
