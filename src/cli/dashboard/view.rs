//! Draws the dashboard: the smaller the window, the fewer panes.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Cell, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table};

use super::board::{Board, Curve, History};
use crate::format::{duration, grouped, whole};
use crate::train::metrics::{EVALUATING, EVALUATING_FULLY};

/// The colours of the two splits.
const TRAIN: Color = Color::Cyan;
const VAL: Color = Color::Yellow;

/// Width of the table of metrics, with its frame.
const TABLE_WIDTH: u16 = 44;

/// Below this width, the table has only names and the training split.
const NARROW: u16 = 36;

/// Least width of a chart.
const CHART_WIDTH: u16 = 30;

/// Draws the board, which has been open for `elapsed`.
pub(super) fn draw(frame: &mut Frame, board: &Board, elapsed: Duration, is_stopping: bool) {
    let area = frame.area();
    let log_height = if area.height < 20 { 0 } else { area.height * 3 / 10 };
    let [progress, metrics, log, keys] = Layout::vertical([
        Constraint::Length(if area.height < 12 { 2 } else { 4 }),
        Constraint::Fill(1),
        Constraint::Length(log_height),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_progress(frame, progress, board, elapsed);
    if area.width < TABLE_WIDTH + CHART_WIDTH {
        draw_table(frame, metrics, board);
    } else {
        let [table, chart] = Layout::horizontal([Constraint::Length(TABLE_WIDTH), Constraint::Fill(1)]).areas(metrics);
        draw_table(frame, table, board);
        draw_chart(frame, chart, board);
    }
    draw_log(frame, log, board);
    draw_keys(frame, keys, board, is_stopping);
}

fn draw_progress(frame: &mut Frame, area: Rect, board: &Board, elapsed: Duration) {
    let mut inner = area;
    if area.height > 2 {
        let block = Block::bordered().title(format!(" {} ", board.title));
        inner = block.inner(area);
        frame.render_widget(block, area);
    }
    let [bar, words] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(inner);
    let done = (board.step as f64 / board.max_steps.max(1) as f64).min(1.0);
    let label = format!(
        "step {}/{}  {:.0} %",
        grouped(board.step as u64),
        grouped(board.max_steps as u64),
        (done * 100.0).floor() // 100 % is all of them
    );
    let gauge = Gauge::default().ratio(done).label(label).use_unicode(true);
    frame.render_widget(gauge.gauge_style(Style::new().fg(TRAIN).bg(Color::Black)), bar);
    let activity = match board.split {
        EVALUATING => "evaluating",
        EVALUATING_FULLY => "evaluating the whole validation split",
        _ => "training",
    };
    let (evaluations, all, gone) = (board.evaluations, board.all_evaluations, duration(elapsed.as_secs_f64()));
    let left = time_left(board, elapsed).map(|left| format!(", about {} left", duration(left))).unwrap_or_default();
    let rest = format!("   evaluations {evaluations}/{all}   {gone} elapsed{left}");
    frame.render_widget(Line::from(vec![activity.bold(), Span::raw(rest)]), words);
}

fn draw_table(frame: &mut Frame, area: Rect, board: &Board) {
    let is_narrow = area.width < NARROW;
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let value = |curve: &Curve| right(curve.latest.map(number).unwrap_or_default());
    let rows = board.metrics.iter().enumerate().map(|(i, metric)| {
        let (mark, style) = match i == board.selected {
            true => ("▸ ", Modifier::BOLD),
            false => ("  ", Modifier::empty()),
        };
        let name = if is_narrow { metric.name.clone() } else { title(metric) };
        Row::new([Cell::from(format!("{mark}{name}")), value(&metric.train), value(&metric.val)]).style(style)
    });
    let header =
        Row::new([Cell::from(""), right("train".to_owned()).style(TRAIN), right("validation".to_owned()).style(VAL)]);
    let widths = [Constraint::Fill(1), Constraint::Length(9), Constraint::Length(if is_narrow { 0 } else { 10 })];
    let table = Table::new(rows, widths).header(header);
    // In few lines, values matter more than a frame.
    let table = if area.height > 5 && !is_narrow { table.block(Block::bordered().title(" metrics ")) } else { table };
    frame.render_widget(table, area);
}

fn draw_chart(frame: &mut Frame, area: Rect, board: &Board) {
    let Some(metric) = board.metrics.get(board.selected) else {
        frame.render_widget(Block::bordered(), area);
        return;
    };
    let block = Block::bordered().title(format!(" {} ", title(metric)));
    let points = || metric.train.points.iter().chain(&metric.val.points);
    let y = || points().map(|point| point.1);
    let (Some(y_min), Some(y_max)) = (y().reduce(f64::min), y().reduce(f64::max)) else {
        let nothing = Paragraph::new("no measurements yet").alignment(Alignment::Center).dim();
        frame.render_widget(nothing.block(block), area);
        return;
    };
    let x_min = board.first_step as f64;
    let x_max = points().fold(x_min + 1.0, |max, point| max.max(point.0));
    // Room above and below, also for a constant.
    let margin = match (y_max - y_min) * 0.05 {
        margin if margin > 0.0 => margin,
        _ if y_max == 0.0 => 1.0,
        _ => y_max.abs() * 0.1,
    };
    let (bottom, top) = (y_min - margin, y_max + margin);
    let line =
        Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).style(TRAIN).data(&metric.train.points);
    // Dots differ from the line without colours too.
    let dots = Dataset::default().marker(Marker::Dot).style(VAL).data(&metric.val.points);
    let datasets = match metric.val.points.is_empty() {
        true => vec![line],
        false => vec![line.name("train"), dots.name("validation")],
    };
    let chart = Chart::new(datasets)
        .x_axis(Axis::default().style(Color::DarkGray).bounds([x_min, x_max]).labels([x_min, x_max].map(whole)))
        .y_axis(
            Axis::default()
                .style(Color::DarkGray)
                .bounds([bottom, top])
                .labels([bottom, f64::midpoint(bottom, top), top].map(number)),
        )
        .hidden_legend_constraints((Constraint::Ratio(1, 2), Constraint::Ratio(1, 2)))
        .block(block);
    frame.render_widget(chart, area);
}

/// The last lines of the log, wrapped.
fn draw_log(frame: &mut Frame, area: Rect, board: &Board) {
    if area.is_empty() {
        return;
    }
    let block = Block::bordered().title(" log ");
    let inner = block.inner(area);
    let mut rows: Vec<String> = Vec::new();
    for line in board.lines.iter().rev() {
        rows.extend(wrapped(line, usize::from(inner.width)).into_iter().rev());
        if rows.len() >= usize::from(inner.height) {
            break;
        }
    }
    rows.truncate(usize::from(inner.height));
    let rows: Vec<Line> = rows.into_iter().rev().map(Line::from).collect();
    frame.render_widget(Paragraph::new(rows).block(block), area);
}

fn draw_keys(frame: &mut Frame, area: Rect, board: &Board, is_stopping: bool) {
    let words = match (is_stopping, board.split) {
        (false, _) => " q or Ctrl-C: save and stop   ↑ ↓: another metric's chart",
        (true, EVALUATING_FULLY) => " stopping; everything is saved",
        (true, _) => " stopping after this step; press Ctrl-C again to stop at once without saving",
    };
    let style = if is_stopping { Style::new().fg(Color::Yellow).bold() } else { Style::new().dim() };
    frame.render_widget(Line::from(words).style(style), area);
}

/// `loss (nats/token)`
fn title(metric: &History) -> String {
    match metric.unit.as_str() {
        "" => metric.name.clone(),
        unit => format!("{} ({unit})", metric.name),
    }
}

/// Estimated seconds to the last step, at the pace so far, evaluations included.
fn time_left(board: &Board, elapsed: Duration) -> Option<f64> {
    let made = board.step.saturating_sub(board.first_step);
    let left = board.max_steps.saturating_sub(board.step);
    (made > 0 && left > 0).then(|| elapsed.as_secs_f64() / made as f64 * left as f64)
}

/// A number with three to five significant digits.
fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        size if !(0.01..1e15).contains(&size) => format!("{x:.2e}"),
        size if size < 10.0 => format!("{x:.4}"),
        size if size < 100.0 => format!("{x:.2}"),
        size if size < 1000.0 => format!("{x:.1}"),
        size => format!("{}{}", if x < 0.0 { "-" } else { "" }, whole(size)),
    }
}

/// A line in pieces that are at most `width` columns wide.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for c in line.chars() {
        let c = if c == '\t' { ' ' } else { c }; // a tab has no width
        let columns = Span::raw(c.to_string()).width();
        if used + columns > width {
            pieces.push(String::new());
            used = 0;
        }
        used += columns;
        pieces.last_mut().expect("there is always a last one").push(c);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::board::MeasuredOn;
    use super::*;
    use crate::train::metrics::definition;

    /// The symbols drawn into a window.
    fn picture(board: &Board, width: u16, height: u16, is_stopping: bool) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("in memory");
        let elapsed = Duration::from_secs(75);
        terminal.draw(|frame| draw(frame, board, elapsed, is_stopping)).expect("in memory");
        let cells = terminal.backend().buffer().content().chunks(usize::from(width.max(1)));
        let row = |row: &[ratatui::buffer::Cell]| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
        cells.map(|cells| row(cells).trim_end().to_owned() + "\n").collect()
    }

    /// A run that registered its metrics and has no values yet.
    fn begun() -> Board {
        let mut board =
            Board { title: "runs/mine on flex".to_owned(), max_steps: 2000, all_evaluations: 8, ..Board::default() };
        for (name, unit) in [("loss", Some("nats/token")), ("learning rate", None), ("speed", Some("tokens/s"))] {
            board.register(definition(name, unit));
        }
        board
    }

    fn running() -> Board {
        let mut board = begun();
        for interval in 1..=30_u32 {
            board.step = 10 * interval as usize;
            let loss = 1.0 + 3.0 / f64::from(interval);
            for (name, value) in [("loss", loss), ("learning rate", 3e-4), ("speed", 18_450.0)] {
                board.measured(&definition(name, None).metric_id, MeasuredOn::Train, value);
            }
        }
        board.step = 250;
        board.measured(&definition("loss", None).metric_id, MeasuredOn::Val, 1.25);
        board.step = 300;
        board.evaluations = 1;
        board.note(
            "step  250/2000  estimates: train loss 1.2000, val loss 1.2500 (best so far)\nsample:\n    | The cat\tsat",
        );
        board.note("saved `runs/mine/checkpoints/step-000250` (best)");
        board
    }

    #[test]
    fn a_run_is_seen_at_a_glance() {
        assert_snapshot!(picture(&running(), 80, 24, false), @r"
        ┌ runs/mine on flex ───────────────────────────────────────────────────────────┐
        │███████████▊                 step 300/2,000  15 %                             │
        │training   evaluations 1/8   1 min 15 s elapsed, about 7 min 5 s left         │
        └──────────────────────────────────────────────────────────────────────────────┘
        ┌ metrics ─────────────────────────────────┐┌ loss (nats/token) ───────────────┐
        │                          train validation││4.1450│ ⡆             ┌──────────┐│
        │▸ loss (nats/token)      1.1000     1.2500││      │ ⢱             │train     ││
        │  learning rate         3.00e-4           ││      │ ⢸             │validation││
        │  speed (tokens/s)       18,450           ││      │ ⠈⡆            └──────────┘│
        │                                          ││2.5500│  ⢇                        │
        │                                          ││      │  ⠘⢄                       │
        │                                          ││      │    ⠑⠢⠤⣀⣀             •    │
        │                                          ││0.9550│         ⠉⠉⠉⠉⠑⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠢⠤⠤│
        │                                          ││      └───────────────────────────│
        │                                          ││      0                        300│
        └──────────────────────────────────────────┘└──────────────────────────────────┘
        ┌ log ─────────────────────────────────────────────────────────────────────────┐
        │step  250/2000  estimates: train loss 1.2000, val loss 1.2500 (best so far)   │
        │sample:                                                                       │
        │    | The cat sat                                                             │
        │saved `runs/mine/checkpoints/step-000250` (best)                              │
        │                                                                              │
        └──────────────────────────────────────────────────────────────────────────────┘
         q or Ctrl-C: save and stop   ↑ ↓: another metric's chart
        ");
    }

    #[test]
    fn a_small_window_has_the_values() {
        assert_snapshot!(picture(&running(), 44, 7, true), @r"
        ██████▋     step 300/2,000  15 %
        training   evaluations 1/8   1 min 15 s elap
                                    train validation
        ▸ loss (nats/token)        1.1000     1.2500
          learning rate           3.00e-4
          speed (tokens/s)         18,450
         stopping after this step; press Ctrl-C agai
        ");
    }

    #[test]
    fn a_tiny_window_has_the_step_and_the_loss() {
        let picture = picture(&running(), 20, 5, false);
        assert!(["step 300/2,000", "loss", "1.1000"].iter().all(|part| picture.contains(part)), "{picture}");
    }

    #[test]
    fn before_the_first_value_there_is_none() {
        for board in [begun(), Board::default()] {
            let picture = picture(&board, 100, 30, false);
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
        assert!(picture(&begun(), 100, 30, false).contains("no measurements yet"));
    }

    #[test]
    fn no_window_is_too_small() {
        for board in [Board::default(), begun(), running()] {
            for (width, height) in [(0, 0), (1, 1), (20, 5), (1, 100), (300, 1), (75, 21), (500, 200)] {
                let picture = picture(&board, width, height, true);
                assert_eq!(picture.lines().count(), usize::from(height), "{width}x{height}");
            }
        }
    }

    #[test]
    fn a_constant_has_a_chart_too() {
        let mut board = begun();
        let loss = definition("loss", None).metric_id;
        for value in [0.0, -3.0, 1e300, -1e300] {
            board.step = 1;
            board.measured(&loss, MeasuredOn::Train, value);
            let picture = picture(&board, 100, 30, false);
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }

    #[test]
    fn numbers_are_short_and_say_enough() {
        for (x, text) in [
            (0.0, "0"),
            (3e-4, "3.00e-4"),
            (0.0125, "0.0125"),
            (2.345_678, "2.3457"),
            (-2.5, "-2.5000"),
            (39.1367, "39.14"),
            (146.26, "146.3"),
            (18_449.6, "18,450"),
            (-1234.0, "-1,234"),
            (1e20, "1.00e20"),
        ] {
            assert_eq!(number(x), text);
        }
    }

    #[test]
    fn long_lines_go_on_in_the_next_row() {
        assert_eq!(wrapped("", 5), [""]);
        assert_eq!(wrapped("abcdefg", 5), ["abcde", "fg"]);
        assert_eq!(wrapped("日本語", 5), ["日本", "語"], "two columns each");
    }
}
