//! Samples, curves and saturation of a fit as an SVG picture.
//!
//! Two panels, time to the first token and between tokens, over utilisation. The first panel's
//! samples are scaled to the reference's prompt, so that all mixes lie on one curve where the fit
//! is right. The scale is logarithmic: an engine near saturation takes many times its rest.

use std::fmt::Write;

use super::sample::Sample;
use super::{Fit, tokens};

/// Size of the picture, and the margins of a panel: left, right, top, bottom.
const SIZE: (f64, f64) = (900.0, 420.0);
const MARGIN: (f64, f64, f64, f64) = (60.0, 20.0, 46.0, 44.0);
/// Colours of mixes, in turn.
const COLOURS: [&str; 6] = [
    "#1b6ca8", "#c8553d", "#4c8c4a", "#8e5ba6", "#b58900", "#3a9b9b",
];
/// Most samples drawn; of more, every nth.
const MOST_DRAWN: usize = 5_000;

/// One panel: its left edge and what it shows.
struct Panel {
    left: f64,
    title: &'static str,
    most_x: f64,
    /// Powers of ten at bottom and top.
    decades: (f64, f64),
}

/// A picture of a fit and the samples it is of.
#[must_use]
pub fn svg(fit: &Fit, samples: &[Sample]) -> String {
    let (width, height) = SIZE;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN_LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(&fit.name()),
        MARGIN_LEFT = MARGIN.0,
    );
    let of = |s: &Sample| {
        let at = fit.expected(s.load_rps, tokens(s));
        let step_ms = fit.steps * s.tbot_ms;
        let grows = fit.scale(s.uncached_tokens()) * fit.longer(at.utilisation, tokens(s));
        let first_ms = (s.ttft_ms - step_ms).max(0.0) / grows;
        (at.utilisation, step_ms + first_ms, s.tbot_ms)
    };
    let every = samples.len().div_ceil(MOST_DRAWN).max(1);
    let drawn: Vec<(&Sample, (f64, f64, f64))> =
        samples.iter().step_by(every).map(|s| (s, of(s))).collect();
    let most_x = drawn.iter().map(|d| d.1.0).fold(1.0, f64::max).min(2.0) * 1.05;
    for (i, title) in ["TTFT, ms", "TBOT, ms"].into_iter().enumerate() {
        let value = |s: &(f64, f64, f64)| if i == 0 { s.1 } else { s.2 };
        let line: Vec<(f64, f64)> = (0..=100)
            .map(|step| {
                let u = most_x * f64::from(step) / 100.0;
                let at = fit.expected(u * fit.capacity_rps(fit.reference), fit.reference);
                (u, if i == 0 { at.ttft_ms } else { at.tbot_ms })
            })
            .collect();
        let all = drawn
            .iter()
            .map(|d| value(&d.1))
            .chain(line.iter().map(|l| l.1));
        let (least, most) = all
            .filter(|v| *v > 0.0)
            .fold((f64::INFINITY, 1e-3_f64), |(a, b), v| (a.min(v), b.max(v)));
        let panel = Panel {
            left: width / 2.0 * i as f64,
            title,
            most_x,
            decades: (least.min(most).log10() - 0.1, most.log10() + 0.1),
        };
        panel.axes(&mut text, fit.work.seen_full);
        for (sample, at) in &drawn {
            panel.sample(&mut text, fit, sample, (at.0, value(at)));
        }
        panel.line(&mut text, &line);
    }
    text.push_str("</svg>\n");
    text
}

impl Panel {
    fn x(&self, utilisation: f64) -> f64 {
        let width = SIZE.0 / 2.0 - MARGIN.0 - MARGIN.1;
        self.left + MARGIN.0 + width * utilisation.min(self.most_x) / self.most_x
    }

    fn y(&self, ms: f64) -> f64 {
        let height = SIZE.1 - MARGIN.2 - MARGIN.3;
        let (low, high) = self.decades;
        let part = (ms.max(1e-9).log10() - low) / (high - low);
        SIZE.1 - MARGIN.3 - height * part.clamp(0.0, 1.0)
    }

    fn axes(&self, text: &mut String, seen_full: bool) {
        let (left, right) = (self.x(0.0), self.x(self.most_x));
        let (top, bottom) = (MARGIN.2, SIZE.1 - MARGIN.3);
        let _ = writeln!(
            text,
            "<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" fill=\"none\" stroke=\"#444\"/>\n\
             <text x=\"{left:.1}\" y=\"{:.1}\">{}</text>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">utilisation</text>",
            top - 8.0,
            self.title,
            f64::midpoint(left, right),
            bottom + 34.0
        );
        for tenth in (0..=(self.most_x * 5.0) as u32).map(|i| f64::from(i) / 5.0) {
            let x = self.x(tenth);
            let _ = writeln!(
                text,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tenth:.1}</text>",
                bottom + 16.0
            );
        }
        for ms in ticks(self.decades) {
            let y = self.y(ms);
            let _ = writeln!(
                text,
                "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#ddd\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ms}</text>",
                left - 6.0,
                y + 4.0
            );
        }
        let (x, word) = (self.x(1.0), if seen_full { "full" } else { "at least" });
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"#a00\" stroke-dasharray=\"4 3\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#a00\">{word}</text>",
            x - 4.0,
            top + 12.0
        );
    }

    fn sample(&self, text: &mut String, fit: &Fit, sample: &Sample, at: (f64, f64)) {
        let far = |m: &super::MixResidual| {
            let prompt = (m.tokens.uncached_tokens / sample.uncached_tokens())
                .ln()
                .abs();
            prompt + (m.tokens.output_tokens / sample.output_tokens).ln().abs()
        };
        let mixes = fit.residuals.iter().enumerate();
        let nearest = mixes.min_by(|a, b| far(a.1).total_cmp(&far(b.1)));
        let colour = COLOURS[nearest.map_or(0, |(i, _)| i) % COLOURS.len()];
        let (x, y) = (self.x(at.0), self.y(at.1));
        // Samples of a full engine are hollow: the curve is not through them.
        let fill = if sample.is_saturated() {
            "none"
        } else {
            colour
        };
        let _ = writeln!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{fill}\" stroke=\"{colour}\"/>"
        );
    }

    fn line(&self, text: &mut String, line: &[(f64, f64)]) {
        text.push_str("<polyline fill=\"none\" stroke=\"black\" stroke-width=\"1.5\" points=\"");
        for (x, y) in line {
            let _ = write!(text, "{:.1},{:.1} ", self.x(*x), self.y(*y));
        }
        text.push_str("\"/>\n");
    }
}

/// 1, 2 and 5 of each decade.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    (low.floor() as i32..=high.ceil() as i32)
        .flat_map(|decade| [1.0, 2.0, 5.0].map(|first| first * 10f64.powi(decade)))
        .filter(|ms| (low..=high).contains(&ms.log10()))
        .collect()
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_lie_within_their_decades() {
        assert_eq!(ticks((0.9, 2.1)), [10.0, 20.0, 50.0, 100.0]);
        assert_eq!(escaped("a<b> & c\n"), "a&lt;b> &amp; c ");
    }
}
