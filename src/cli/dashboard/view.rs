//! What the dashboard looks like, in a window of any size: the smaller it is, the fewer panes it has.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, Cell, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table,
};

use super::board::{Activity, Board, Curve, History};
use crate::cli::progress::{duration, grouped};

/// The colours of the training and of the validation split, wherever they are.
const TRAIN: Color = Color::Cyan;
const VAL: Color = Color::Yellow;

/// The columns of the table of metrics, with its frame.
const TABLE_WIDTH: u16 = 44;

/// The least columns that a chart makes sense on.
const CHART_WIDTH: u16 = 30;

/// Draws the board; `elapsed` is how long it has been open.
pub(super) fn draw(frame: &mut Frame, board: &Board, elapsed: Duration, is_stopping: bool) {
    let area = frame.area();
    let log_height = if area.height < 20 {
        0
    } else {
        area.height * 3 / 10
    };
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
        let [table, chart] =
            Layout::horizontal([Constraint::Length(TABLE_WIDTH), Constraint::Fill(1)])
                .areas(metrics);
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
    let [bar, words] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(inner);
    let done = fraction(board.step, board.max_steps);
    let label = format!(
        "step {}/{}  {:.0} %",
        grouped(board.step),
        grouped(board.max_steps),
        (done * 100.0).floor() // 100 % is all of them
    );
    let gauge = Gauge::default()
        .ratio(done)
        .label(label)
        .use_unicode(true)
        .gauge_style(Style::new().fg(TRAIN).bg(Color::DarkGray));
    frame.render_widget(gauge, bar);
    let activity = match board.activity {
        Activity::Training => "training",
        Activity::Evaluating => "evaluating",
        Activity::EvaluatingFully => "evaluating the whole validation split",
    };
    let line = Line::from(vec![
        activity.bold(),
        Span::raw(format!(
            "   evaluations {}/{}   {} gone{}",
            board.evaluations,
            board.all_evaluations,
            duration(elapsed.as_secs_f64()),
            time_left(board, elapsed)
                .map(|left| format!(", about {} left", duration(left)))
                .unwrap_or_default(),
        )),
    ]);
    frame.render_widget(line, words);
}

fn draw_table(frame: &mut Frame, area: Rect, board: &Board) {
    let split = |name, color| Cell::from(Line::from(name).right_aligned()).style(color);
    let header = Row::new([
        Cell::from(""),
        split("train", TRAIN),
        split("validation", VAL),
    ]);
    let rows = board.metrics.iter().enumerate().map(|(i, metric)| {
        let value = |curve: &Curve| {
            let text = curve.latest.map(number).unwrap_or_default();
            Cell::from(Line::from(text).right_aligned())
        };
        let is_selected = i == board.selected;
        let mark = if is_selected { "▸ " } else { "  " };
        let row = Row::new([
            Cell::from(format!("{mark}{}", title(metric))),
            value(&metric.train),
            value(&metric.val),
        ]);
        row.style(if is_selected {
            Modifier::BOLD
        } else {
            Modifier::empty()
        })
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(10),
    ];
    let table = Table::new(rows, widths).header(header);
    // On a few lines, the values are worth more than a frame.
    let table = if area.height > 5 {
        table.block(Block::bordered().title(" metrics "))
    } else {
        table
    };
    frame.render_widget(table, area);
}

fn draw_chart(frame: &mut Frame, area: Rect, board: &Board) {
    let Some(metric) = board.metrics.get(board.selected) else {
        frame.render_widget(Block::bordered(), area);
        return;
    };
    let block = Block::bordered().title(format!(" {} ", title(metric)));
    let points = || metric.train.points.iter().chain(&metric.val.points);
    let Some((y_min, y_max)) = bounds(points().map(|point| point.1)) else {
        let nothing = Paragraph::new("nothing measured yet")
            .alignment(Alignment::Center)
            .dim();
        frame.render_widget(nothing.block(block), area);
        return;
    };
    #[allow(clippy::cast_precision_loss, reason = "steps are below 2^52")]
    let x_min = board.first_step as f64;
    let x_max = points().fold(x_min + 1.0, |max, point| max.max(point.0));
    // A line at the very edge is hard to see, and a constant has no height of its own.
    let margin = match (y_max - y_min) * 0.05 {
        margin if margin > 0.0 => margin,
        _ if y_max == 0.0 => 1.0,
        _ => y_max.abs() * 0.1,
    };
    let (bottom, top) = (y_min - margin, y_max + margin);
    let line = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(TRAIN)
        .data(&metric.train.points);
    // Few and far between, and told from the line without colours.
    let dots = Dataset::default()
        .marker(Marker::Dot)
        .style(VAL)
        .data(&metric.val.points);
    let datasets = match metric.val.points.is_empty() {
        true => vec![line],
        false => vec![line.name("train"), dots.name("validation")],
    };
    let chart = Chart::new(datasets)
        .x_axis(
            Axis::default()
                .style(Color::DarkGray)
                .bounds([x_min, x_max])
                .labels([step(x_min), step(x_max)]),
        )
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

/// The last lines, long ones continued on the next.
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
    let words = match (is_stopping, board.activity) {
        (false, _) => " q or Ctrl-C: save and stop   ↑ ↓: another metric's chart",
        (true, Activity::EvaluatingFully) => " stopping; all is saved",
        (true, _) => " stopping after this step; press Ctrl-C again to stop at once without saving",
    };
    let style = match is_stopping {
        true => Style::new().fg(Color::Yellow).bold(),
        false => Style::new().dim(),
    };
    frame.render_widget(Line::from(words).style(style), area);
}

/// A metric and what it is counted in.
fn title(metric: &History) -> String {
    match metric.unit.as_str() {
        "" => metric.name.clone(),
        unit => format!("{} ({unit})", metric.name),
    }
}

/// How long the steps that are left may take, evaluations included, in seconds.
#[allow(clippy::cast_precision_loss, reason = "steps are below 2^52")]
fn time_left(board: &Board, elapsed: Duration) -> Option<f64> {
    let made = board.step.saturating_sub(board.first_step);
    let left = board.max_steps.saturating_sub(board.step);
    (made > 0 && left > 0).then(|| elapsed.as_secs_f64() / made as f64 * left as f64)
}

#[allow(clippy::cast_precision_loss, reason = "steps are below 2^52")]
fn fraction(part: usize, whole: usize) -> f64 {
    (part as f64 / whole.max(1) as f64).min(1.0)
}

/// The least and the greatest.
fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| match bounds {
        None => Some((value, value)),
        Some((min, max)) => Some((value.min(min), value.max(max))),
    })
}

/// A number with about five digits that count.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole, not negative, and below 10^15"
)]
fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.01 || size >= 1e15 => format!("{x:.2e}"),
        size if size < 100.0 => format!("{x:.4}"),
        size if size < 1000.0 => format!("{x:.1}"),
        size => {
            let sign = if x < 0.0 { "-" } else { "" };
            format!("{sign}{}", grouped(size.round() as usize))
        }
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a step"
)]
fn step(x: f64) -> String {
    grouped(x.round() as usize)
}

/// A line in pieces that are at most so many columns wide.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for c in line.chars() {
        let c = if c == '\t' { ' ' } else { c }; // which has no width of its own
        let columns = Span::raw(c.to_string()).width();
        if used + columns > width {
            pieces.push(String::new());
            used = 0;
        }
        used += columns;
        pieces
            .last_mut()
            .expect("there is always a last one")
            .push(c);
    }
    pieces
}
